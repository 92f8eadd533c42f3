"""The same process groups for synchronous code: scripts, threads, notebooks.

    import aiodist as dist

    with dist.portal.init_process_group() as pg:
        pg.all_reduce(grad)                          # returns when it is done
        work = pg.all_reduce(loss, async_op=True)    # returns when it has begun
        ...
        work.wait()

A portal is a thread that runs an event loop, and the loop runs aiodist. Every method of `ProcessGroup`
exists on `SyncProcessGroup`, made from the original when this package is loaded: the call crosses to the
loop, is issued there, and the caller gets what `await` would have given.

`GradientSync`, `ShardedOptimizer`, `DiLoCo`, `LocalSGD` and `Checkpoints` are here, too, with methods that
block.

- Issue order is the order of the calls: a method returns after its operation was issued. Threads that share
  a group have to agree on an order as ranks do; give each a group of its own.
- A blocked call blocks its thread only, and holds no lock: other threads go on. A running event loop in the
  same thread (a notebook's) stands still meanwhile.
- Ctrl-C interrupts a blocked call at once. The operation goes on, since peers count on it, and borrows its
  tensors until it ends (`pg.drain()` waits for that); the group stays usable. A blocked receive is taken
  back, and its message goes to the next one. Ctrl-C in `init_process_group` gives up; while closing, it
  aborts.
- Leaving `with` by an exception aborts the group, as `async with` does. What is open when the interpreter
  exits is closed, for at most `EXIT_PATIENCE` seconds; then it is aborted. What that raises is printed, and
  the process ends with exit code 1.
"""

from aiodist.portal.facade import Portal, SyncProcessGroup, SyncWork, init_process_group, join
from aiodist.portal.taking import SyncIterator
from aiodist.portal.training import Checkpoints, DiLoCo, GradientSync, LocalSGD, ShardedOptimizer, SyncSaving

__all__ = [
    "Checkpoints",
    "DiLoCo",
    "GradientSync",
    "LocalSGD",
    "Portal",
    "ShardedOptimizer",
    "SyncIterator",
    "SyncProcessGroup",
    "SyncSaving",
    "SyncWork",
    "init_process_group",
    "join",
]
