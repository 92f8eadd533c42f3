"""The contract of `Work`, on handles of every way in which a group makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.work import Work
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, spmd
from aiodist.transport.memory import MemoryNetwork
from tests.levels import COSTLY

Issue = Callable[[ProcessGroup], Work[Any]]


def other(pg: ProcessGroup) -> int:
    return 1 - pg.rank


ISSUES: dict[str, Issue] = {
    "in a slot": lambda pg: pg.all_reduce(np.arange(4) + pg.rank, async_op=True),
    "staged": lambda pg: pg.all_reduce(np.arange(3000) + pg.rank, async_op=True),
    "in two phases": lambda pg: pg.all_reduce(np.arange(30_000) + pg.rank, async_op=True),
    "in the thread": lambda pg: pg.all_reduce(np.arange(400_000) + pg.rank, async_op=True),
    "in one phase": lambda pg: pg.all_gather(np.arange(5) + pg.rank, async_op=True),
    "barrier": lambda pg: pg.barrier(async_op=True),
    "with a timeout": lambda pg: pg.all_reduce(np.arange(4) + pg.rank, timeout=60, async_op=True),
    "strided": lambda pg: pg.all_reduce((np.arange(8) + pg.rank)[::2], async_op=True),
    "multiplied": lambda pg: pg.all_reduce(np.ones(4), op=dist.premul_sum(2.0), async_op=True),
    "of uneven parts": lambda pg: pg.all_gather(np.arange(2 + pg.rank), sizes=[2, 3], async_op=True),
    "of objects": lambda pg: pg.all_gather_object({"rank": pg.rank}, async_op=True),
    "sent": lambda pg: pg.send(np.ones(3), other(pg), async_op=True),
    "received": lambda pg: pg.recv(np.ones(3), other(pg), async_op=True),
}


PARTNERS = {"sent": ISSUES["received"], "received": ISSUES["sent"]}


async def contract(pg: ProcessGroup) -> None:
    """What holds for each, from the call to the end."""
    for name, issue in ISSUES.items():
        work = issue(pg)
        partner = PARTNERS[name](pg) if name in PARTNERS else None
        loop = asyncio.get_running_loop()
        assert work.group is pg, name
        assert work.op in repr(work), name
        seen: list[Work[Any]] = []
        number = work.seq
        work.add_done_callback(seen.append)
        if not work.done():
            with pytest.raises(asyncio.InvalidStateError, match="has not ended yet"):
                work.result()
        cancelled = loop.create_task(work.wait())
        waiting = [loop.create_task(work.wait()) for _ in range(2)]
        cancelled.cancel()
        results = await asyncio.gather(*waiting)
        result = await work
        assert all(one is result for one in results), name
        assert result is work.result() is await work.wait(timeout=60), name
        assert work.done() and work.is_completed() and work.is_success(), name
        assert work.exception() is None, name
        assert work.seq == number, name
        await asyncio.gather(cancelled, return_exceptions=True)
        assert seen == [work], name
        assert repr(work) == f"<Work {work.op} #{number} done>", name
        with pytest.raises(dist.UsageError, match="runs on the host"):
            work.synchronize()
        if partner is not None:
            await partner
        await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@spmd(world_size=2)
async def test_between_processes(pg: ProcessGroup, transport: str) -> None:
    await contract(pg)


async def test_between_ranks_of_one_process() -> None:
    await run_cluster(2, contract, network=MemoryNetwork())


async def failing(pg: ProcessGroup) -> None:
    """What holds where the group breaks: every handle fails, once, with its own name and number."""
    names = [name for name in ISSUES if name != "sent"]
    if pg.rank == 1:
        await pg.barrier()
        pg.abort("enough")
        return
    await pg.barrier()
    works = [ISSUES[name](pg) for name in names]
    loop = asyncio.get_running_loop()
    for name, work in zip(names, works, strict=True):
        waiting = loop.create_task(work.wait())
        with pytest.raises(dist.GroupAborted) as caught:
            await work
        with pytest.raises(dist.GroupAborted):
            await waiting
        assert caught.value is work.exception(), name
        assert (caught.value.op, caught.value.seq) == (work.op, work.seq), name
        assert work.done() and not work.is_success(), name
        assert repr(work).startswith(f"<Work {work.op} #{work.seq} failed"), name


async def test_that_fail() -> None:
    await run_cluster(2, failing, network=MemoryNetwork())
