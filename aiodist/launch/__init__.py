"""The per-node launcher: starts workers, relays their output, mends failures, says which came first."""

from aiodist.launch.config import LaunchConfig

__all__ = ["LaunchConfig"]
