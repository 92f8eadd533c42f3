"""An array of `pg.empty` whose operation failed is written again at once: nobody takes that for a result.

Rank 1's loop, or its thread, stands still meanwhile: it has heard of nothing when it goes on. It does so when
rank 0 writes to a FIFO: its Work has failed, and its array has other values.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiodist import _engine
from aiodist.backends.host.local.bulk import Bulk
from aiodist.backends.work import Work
from aiodist.base.errors import CollectiveTimeout, GroupAborted, GroupBroken, PeerLost
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY, few

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

INLINE, BULK = 100_000, 8_000_000
"""Bytes of arrays that the loop handles, and the thread."""


ERRORS = {"abort": GroupAborted, "timeout": CollectiveTimeout, "killed": PeerLost, "closed": PeerLost}


def values(rank: int, count: int) -> Any:
    return (np.arange(count) * 7 + rank * 3) % 101 + 1.0


def begin(group: ProcessGroup, kind: str, tensor: Any) -> Work[Any]:
    """Start a collective in which rank 1 reads what rank 0 has."""
    if kind == "all_reduce":
        return group.all_reduce(tensor, async_op=True)
    if kind == "reduce":
        return group.reduce(tensor, dst=1, async_op=True)
    if kind == "broadcast":
        return group.broadcast(tensor, src=0, async_op=True)
    if kind == "all_gather":
        return group.all_gather(tensor, async_op=True)
    return group.all_to_all(tensor.reshape(group.size, -1), async_op=True)


async def fifos(pg: ProcessGroup) -> tuple[Path, Path]:
    """Two, which rank 0 makes: whoever opens one waits for another who does."""
    folder = Path(await pg.broadcast_object(tempfile.mkdtemp() if pg.rank == 0 else None))
    paths = folder / "stopped", folder / "go on"
    if pg.rank == 0:
        for path in paths:
            os.mkfifo(path)
    await pg.barrier()
    return paths


async def fail(
    pg: ProcessGroup, group: ProcessGroup, kind: str, how: str, nbytes: int, thread: bool = False
) -> None:
    """Rank 0's part: its operation fails, and its array is used for something else.

    Args:
        thread: rank 1's thread stands still while it reads; else its loop does, before that.
    """
    count = nbytes // 8
    tensor = group.empty(count, np.float64)
    tensor[...] = values(0, count)
    stopped, go_on = await fifos(pg)
    for peer in range(1, pg.size):
        await pg.recv(np.zeros(1), peer)  # it has published
    if not thread:
        await asyncio.to_thread(stopped.read_text)
    if how == "timeout":
        group.timeout = 0.3
    work = begin(group, kind, tensor)
    for _ in range(10):
        await asyncio.sleep(0)  # all that this rank can do now is done
    if thread:
        await asyncio.to_thread(stopped.read_text)
    if how == "abort":
        group.abort("enough")
    elif how != "timeout":
        await pg.send(np.zeros(1), 2)
    later = group.barrier(async_op=True) if how == "closed" else work
    with pytest.raises(ERRORS[how]):
        await work
    tensor[...] = -1
    assert isinstance(later.exception(), ERRORS[how])
    go_on.write_text("now")
    stopped.unlink()
    go_on.unlink()
    go_on.parent.rmdir()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("how", ["abort", "timeout"])
@pytest.mark.parametrize(
    "kind", few(["all_reduce", "reduce", "broadcast", "all_gather", "all_to_all"], ["all_reduce"])
)
@spmd(world_size=2, transport="shm")
async def test_on_the_loop(pg: ProcessGroup, kind: str, how: str) -> None:
    group = await pg.new_group()
    assert group is not None
    await group.all_reduce(np.ones(3))  # all have made it
    if pg.rank == 0:
        await fail(pg, group, kind, how, INLINE)
    else:
        stopped, go_on = await fifos(pg)
        work = begin(group, kind, values(1, INLINE // 8))
        await pg.send(np.zeros(1), 0)
        stopped.write_text("now")
        go_on.read_text()  # the loop stands still
        with pytest.raises(GroupBroken):
            await work
    await pg.barrier()


@spmd(world_size=3, transport="shm", exits={2: -9})
async def test_where_another_is_killed(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await fail(pg, pg, "broadcast", "killed", INLINE)
        return
    stopped, go_on = await fifos(pg)
    work = begin(pg, "broadcast", np.zeros(INLINE // 8))
    await pg.send(np.zeros(1), 0)
    if pg.rank == 2:
        await pg.recv(np.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    stopped.write_text("now")
    go_on.read_text()
    with pytest.raises(PeerLost):
        await work


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm")
async def test_where_another_closes_early(pg: ProcessGroup) -> None:
    """Rank 0 breaks the group because of an operation that rank 1 has not issued, and rank 2 never will: what
    rank 1 waits for can end no more, and it is told."""
    group = await pg.new_group()
    assert group is not None
    await group.barrier()
    if pg.rank == 0:
        await fail(pg, group, "broadcast", "closed", INLINE)
    else:
        stopped, go_on = await fifos(pg)
        work = begin(group, "broadcast", np.zeros(INLINE // 8))
        await pg.send(np.zeros(1), 0)
        if pg.rank == 2:
            await work
            await pg.recv(np.zeros(1), 0)
            await group.aclose()
        else:
            stopped.write_text("now")
            go_on.read_text()
            with pytest.raises(PeerLost, match="lost rank 2: it closed the group"):
                await work
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("kind", ["broadcast", "all_to_all"])
@spmd(world_size=2, transport="shm")
async def test_in_the_thread(pg: ProcessGroup, kind: str) -> None:
    """Rank 1's thread stops between its look at a word and its copy, and goes on before its loop does."""
    from aiodist._engine import exchange as engine

    group = await pg.new_group()
    assert group is not None
    await group.all_reduce(np.ones(3))
    if pg.rank == 0:
        await fail(pg, group, kind, "abort", BULK, thread=True)
        await pg.barrier()
        return
    stopped, go_on = await fifos(pg)
    late, over = threading.Event(), threading.Event()
    said: list[Any] = []
    loop = asyncio.get_running_loop()
    sleep, call, here = Bulk._sleep, loop.call_soon_threadsafe, threading.get_ident()

    def at() -> None:
        if threading.get_ident() != here and not late.is_set():
            stopped.write_text("now")
            go_on.read_text()
            late.set()

    def calls(*args: Any, **named: Any) -> Any:
        if not late.is_set():
            return call(*args, **named)
        said.append(args)
        return over.set()  # the thread is through

    def sleeps(self: Bulk, *args: Any) -> None:
        if late.is_set():
            over.set()  # it goes no further
        sleep(self, *args)

    patch = pytest.MonkeyPatch()
    engine.before_reads(at)
    patch.setattr(Bulk, "_sleep", sleeps)
    patch.setattr(loop, "call_soon_threadsafe", calls)
    work = begin(group, kind, values(1, BULK // 8))
    await pg.send(np.zeros(1), 0)
    over.wait()  # the loop stands still
    patch.undo()
    engine.before_reads(None)
    for function, *args in said:  # of all that has come meanwhile the loop hears this first
        function(*args)
    with pytest.raises(GroupBroken):
        await work
    await pg.barrier()
