"""The per-node launcher: starts workers, relays their output, says which failed first."""

from aiodist.launch.plan import Plan

__all__ = ["Plan"]
