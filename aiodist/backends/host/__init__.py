"""The host backend: NumPy memory over shared memory and TCP, on the caller's event loop.

`engine` is the process's one place for channels; `backend` is a group's; `prepare` says which buffer an
operation works on; `wired` runs schedules over channels; `messages` matches point-to-point; `offload`
takes long work off the loop.
"""

from aiodist.backends.host.engine import HostEngine

__all__ = ["HostEngine"]
