"""A script, as thousands of ranks run it in this process: each in a thread, with an environment and clocks of
its own.

While a simulation runs, `os.environ`, `sys.stdout`, the clocks of `time`, `asyncio.sleep` and NumPy's makers
of arrays look at which rank asks. Large arrays of all ranks lie in the same memory: they are sizes, not
values.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import mmap
import os
import sys
import time
import types
import weakref
from collections.abc import Collection, Iterator, MutableMapping
from typing import Any, TextIO

import numpy as np

from aiodist.base.errors import AiodistError, GroupBroken
from aiodist.group.runtime.simulated import current
from aiodist.sim.engine import RankThread, StuckError
from aiodist.sim.world import SimPlace, SimWorld
from aiodist.transport.shm.heap import Heap

SHARED = 1 << 20
"""Bytes from which an array lies where the other ranks' arrays lie."""

ROOM = 1 << 36

NORESERVE = 0x4000
"""Linux' MAP_NORESERVE, which `mmap` lacks: pages count when touched."""


class FailedError(AiodistError):
    """A rank's program failed."""


def here() -> SimPlace | None:
    """The place of the rank that runs; None outside of a simulation."""
    place = current.get()
    return place if isinstance(place, SimPlace) else None


def run_script(world: SimWorld, path: str, argv: list[str], shown: Collection[int] = (0,)) -> None:
    """Run a script on all ranks, to the end.

    Args:
        path: of the script; argv: its arguments.
        shown: ranks whose output is shown.

    Raises:
        FailedError: a rank's program failed; its cause is what it raised.
        StuckError: the ranks wait for each other.
    """
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
    except OSError as error:
        raise FailedError(f"cannot read {path!r}: {error.strerror}") from None
    except SyntaxError as error:
        raise FailedError(f"{path} is not valid Python: {error}") from None
    engine, size = world.engine, world.network.size
    local: dict[int, int] = {}
    sizes = [world.network.host_of.count(host) for host in range(len(world.network.links))]
    threads = []
    for rank in range(size):
        place = SimPlace(world, rank)
        host = world.network.host_of[rank]
        local[host] = local.get(host, -1) + 1
        own = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": local[host],
            "LOCAL_WORLD_SIZE": sizes[host],
            "GROUP_RANK": host,
            "NODE_RANK": host,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
        }
        context = contextvars.copy_context()
        context.run(current.set, place)
        context.run(_own.set, {name: str(value) for name, value in own.items()})

        def program() -> None:
            module = types.ModuleType("__main__")
            module.__file__ = path
            exec(code, module.__dict__)

        place.thread = RankThread(engine, program, context)
        threads.append(place.thread)
        engine.add(place.thread)
    with _disguised(path, argv, frozenset(shown)):
        try:
            all_ended = engine.run()
            lines = [] if all_ended else world.stuck()  # before the ranks are stopped
        finally:
            engine.close()
    failed = {rank: thread.error for rank, thread in enumerate(threads) if not _well(thread.error)}
    if failed:
        rank = next(
            (rank for rank, raised in failed.items() if not isinstance(raised, GroupBroken)), min(failed)
        )
        raised = failed[rank]
        raise FailedError(f"rank {rank} failed: {type(raised).__name__}: {raised}") from raised
    if not all_ended:
        more = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
        said = "; ".join(lines[:8]) or "no rank waits in an operation: they await something else"
        raise StuckError(f"the ranks wait for ever: {said}{more}")


def _well(error: BaseException | None) -> bool:
    return error is None or (isinstance(error, SystemExit) and not error.code)


# ── what a rank sees ─────────────────────────────────────────────────────────────────────────────────

_own: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar(
    "aiodist_sim_environ", default=None
)


class _Environ(MutableMapping[str, str]):
    """The environment, with what differs between ranks."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getitem__(self, name: str) -> str:
        own = _own.get()
        return own[name] if own is not None and name in own else self._real[name]

    def __setitem__(self, name: str, value: str) -> None:
        own = _own.get()
        if own is None:
            self._real[name] = value
        else:
            own[name] = value

    def __delitem__(self, name: str) -> None:
        own = _own.get()
        if own is not None and name in own:
            del own[name]
        else:
            del self._real[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._real, **(_own.get() or {})})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, str]:
        """As a dict."""
        return dict(self)


class _Output:
    """Standard output or error, of some ranks only."""

    def __init__(self, real: TextIO, shown: frozenset[int]) -> None:
        self._real = real
        self._shown = shown

    def write(self, text: str) -> int:
        """Write it, if this rank is shown."""
        place = here()
        return self._real.write(text) if place is None or place.rank in self._shown else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextlib.contextmanager
def _disguised(path: str, argv: list[str], shown: frozenset[int]) -> Iterator[None]:
    replaced: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, value: Any) -> None:
        replaced.append((where, name, getattr(where, name)))
        setattr(where, name, value)

    put(os, "environ", _Environ(os.environ))
    put(sys, "argv", [path, *argv])
    put(sys, "path", [os.path.dirname(os.path.abspath(path)), *sys.path])
    put(sys, "stdout", _Output(sys.stdout, shown))
    put(sys, "stderr", _Output(sys.stderr, shown))
    for name, scale in (("time", 1.0), ("monotonic", 1.0), ("perf_counter", 1.0)):
        put(time, f"{name}_ns", _clock(getattr(time, f"{name}_ns"), 1e9))
        put(time, name, _clock(getattr(time, name), scale))
    put(time, "sleep", _sleeping(time.sleep))
    put(asyncio, "sleep", _async_sleep(asyncio.sleep))
    memory = _Memory()
    for name in ("empty", "zeros", "ones"):
        put(np, name, memory.maker(getattr(np, name)))
    policy = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(policy)
        for where, name, value in reversed(replaced):
            setattr(where, name, value)


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Gives ranks their loops."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A loop for the rank that asks."""
        place = here()
        return super().new_event_loop() if place is None else place.new_loop()


def _clock(real: Any, scale: float) -> Any:
    def clock() -> Any:
        place = here()
        if place is None:
            return real()
        return place.time() if scale == 1.0 else round(place.time() * scale)

    return clock


def _sleeping(real: Any) -> Any:
    def sleep(seconds: float) -> None:
        place = here()
        if place is None:
            real(seconds)
        else:
            place.compute(seconds)

    return sleep


def _async_sleep(real: Any) -> Any:
    def sleep(delay: float, result: Any = None) -> Any:
        place = here()
        return real(delay * (1.0 if place is None else place.factor), result)

    return sleep


class _Memory:
    """Memory in which the large arrays of all ranks lie, one rank's above the other's."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ROOM, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE)
        self._heaps: dict[int, Heap] = {}

    def maker(self, real: Any) -> Any:
        """A maker of arrays in the place of one of NumPy's; values of large ones mean nothing."""

        def make(shape: Any, dtype: Any = float, *args: Any, **more: Any) -> Any:
            place = here()
            if place is None or args or more:
                return real(shape, dtype, *args, **more)
            kind = np.dtype(dtype)
            extents = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
            count = 1
            for extent in extents:
                count *= int(extent)
            if count * kind.itemsize < SHARED or kind.hasobject:
                return real(shape, dtype)
            heap = self._heaps.setdefault(place.rank, Heap(0, ROOM))
            at = heap.take_large(count * kind.itemsize)
            base: Any = np.frombuffer(self._memory, kind, count, at)
            weakref.finalize(base, heap.free, at).atexit = False
            return base.reshape(extents)

        return make
