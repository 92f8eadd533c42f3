"""The host backend: NumPy memory over shared memory and TCP, on the caller's event loop.

`engine` is the process's one place for channels, and `resources` what its groups share. `backend` is a
group's, on its `channels`. `wired` runs schedules over those, with the memory of `chunks` and the bytes of
`layout`. `messages` matches point-to-point, `hierarchy` goes by hosts, `local/` is shared memory, and `alone`
a group of one. `offload` takes long work off the loop.
"""

from aiodist.backends.host.engine import HostEngine

__all__ = ["HostEngine"]
