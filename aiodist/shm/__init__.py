"""Memory that one process writes and others on the same host map read-only."""

from aiodist.shm.arena import Arena, Window, available
from aiodist.shm.blocks import BlockPool

__all__ = ["Arena", "BlockPool", "Window", "available"]
