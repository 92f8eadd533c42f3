"""Memory that one process writes and other processes of the host map read-only.

arena       memory of one owner: a sealed memfd
segment     a process's shared segment (one large arena) and its eventfds; a peer's, as mapped here
heap        which part of a segment belongs to which user of it; `blocks`: free blocks of a link
ring        records from one process to another
remote      another process's private memory, read in place (process_vm_readv)
"""

from aiodist.transport.shm.arena import Arena, Window, available
from aiodist.transport.shm.blocks import BlockPool

__all__ = ["Arena", "BlockPool", "Window", "available"]
