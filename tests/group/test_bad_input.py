"""Bad input gets a typed error at the call, before anything is sent: the group goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.cluster import run_cluster


def read_only() -> Any:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


def endless() -> Any:
    """One element as an array of more bytes than an address space has room for."""
    return np.broadcast_to(np.float32(1), (2, 1 << 46))


Call = Callable[[ProcessGroup], Any]

CASES: list[tuple[str, Call]] = [
    ("tensor is read-only", lambda pg: pg.recv(read_only(), 1 - pg.rank)),
    ("no memory for a new value of tensor", lambda pg: pg.all_reduce(endless())),
    ("out is read-only", lambda pg: pg.all_gather(np.zeros(3), read_only())),
    ("must be a ReduceOp", lambda pg: pg.all_reduce(np.zeros(3), cast("Any", "sum"))),
    ("AVG of int64", lambda pg: pg.all_reduce(np.zeros(3, np.int64), dist.ReduceOp.AVG)),
    ("MIN of complex64", lambda pg: pg.all_reduce(np.zeros(3, np.complex64), dist.ReduceOp.MIN)),
    ("BXOR of float32", lambda pg: pg.all_reduce(np.zeros(3, np.float32), dist.ReduceOp.BXOR)),
    ("src=5 is not a rank of this group, which has ranks 0 to 1", lambda pg: pg.broadcast(np.zeros(3), 5)),
    ("src=-1 is not a rank", lambda pg: pg.broadcast(np.zeros(3), -1)),
    ("dst must be a rank (an integer)", lambda pg: pg.reduce(np.zeros(3), cast("Any", "0"))),
    ("dst=2 is not a rank", lambda pg: pg.send(np.zeros(3), 2)),
    ("tag=-1 is outside", lambda pg: pg.send(np.zeros(3), 1 - pg.rank, tag=-1)),
    (
        "out has shape (2, 4), expected (6,) or (2, 3)",
        lambda pg: pg.all_gather(np.zeros(3), np.zeros((2, 4))),
    ),
    ("say 2 rows on rank", lambda pg: pg.all_gather(np.zeros(3), sizes=[2, 2])),
    ("sizes=[1, 2, 3] must be 2 counts", lambda pg: pg.all_gather(np.zeros(1), sizes=[1, 2, 3])),
    ("say 5 rows on rank", lambda pg: pg.reduce_scatter(np.zeros(4), sizes=[2, 3])),
    ("sizes must be a list of 2 row counts", lambda pg: pg.reduce_scatter(np.zeros(4), sizes=2)),  # type: ignore[arg-type]
    ("out has dtype float32", lambda pg: pg.all_reduce(np.zeros(3), out=np.zeros(3, np.float32))),
    ("tensor is missing. Pass what", lambda pg: pg.reduce_scatter(None, np.zeros(3))),
    ("share memory", lambda pg: pg.all_gather(x := np.zeros((2, 3))[0], x.base)),
    ("the first axis has 3 elements, which 2 ranks", lambda pg: pg.reduce_scatter(np.zeros(3))),
    ("a 0-d tensor has none", lambda pg: pg.reduce_scatter(np.zeros(()))),
    ("timeout must be a positive number", lambda pg: pg.barrier(timeout=0)),
    ("timeout must be a positive number", lambda pg: pg.barrier(timeout=-(10**400))),
    ("ranks names a rank twice", lambda pg: pg.new_group([0, 0])),
    ("ranks is empty", lambda pg: pg.new_group([])),
    ("no memory for contiguous copies", lambda pg: pg.send(endless(), 1 - pg.rank)),
    ("no memory for contiguous copies", lambda pg: pg.reduce(endless(), 1 - pg.rank)),
    ("no memory for contiguous copies", lambda pg: pg.broadcast(endless(), pg.rank)),
    ("no memory for a result of shape (2, 2, 70368744177664)", lambda pg: pg.all_gather(endless())),
    ("no memory for a result", lambda pg: pg.reduce_scatter(endless())),
    ("cannot be communicated", lambda pg: pg.all_reduce(np.array(["a"]))),
    ("single float", lambda pg: pg.recv(3.0, 1 - pg.rank)),
    ("array", lambda pg: pg.all_reduce([1, 2, 3])),
    ("tensor", lambda pg: pg.all_reduce(None)),
]


@pytest.mark.parametrize(
    ("message", "call"), CASES, ids=[case[0][:40] or str(i) for i, case in enumerate(CASES)]
)
async def test_usage_error_at_the_call_and_the_group_goes_on(message: str, call: Call) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=re.escape(message)):
            call(pg)
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3  # no number was taken

    await run_cluster(2, main)


async def test_call_from_another_loop_or_thread_names_the_portal() -> None:
    async def main(pg: ProcessGroup) -> None:
        work = pg.all_reduce(np.array([pg.rank]), async_op=True)

        async def elsewhere() -> None:
            with pytest.raises(dist.UsageError, match=r"another event loop or thread.*aiodist\.portal"):
                pg.all_reduce(np.zeros(3))

        def thread() -> None:
            with pytest.raises(dist.UsageError, match=r"aiodist\.portal"):
                pg.barrier()
            asyncio.run(elsewhere())

        await asyncio.to_thread(thread)
        assert (await work)[0] == 1

    await run_cluster(2, main)


async def test_awaiting_a_pending_work_on_another_loop_is_refused() -> None:
    refused = asyncio.Event()

    async def main(pg: ProcessGroup) -> None:
        work = pg.barrier(async_op=True) if pg.rank == 0 else None

        async def elsewhere() -> None:
            assert work is not None
            with pytest.raises(dist.UsageError, match="another event loop"):
                await work

        if work is not None:
            assert not work.done()
            await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            refused.set()
            await work
        else:
            await refused.wait()
            await pg.barrier()

    await run_cluster(2, main)


async def test_closed_group_is_refused() -> None:
    async def main(pg: ProcessGroup) -> None:
        child = await pg.new_group()
        assert child is not None
        work = child.all_reduce(np.array([1]), async_op=True)
        await child.aclose()
        await child.aclose()  # again is no mistake
        assert work.result()[0] == 2  # results outlive the group
        with pytest.raises(dist.GroupClosed, match="is closed"):
            child.barrier()

    await run_cluster(2, main)


async def test_no_other_array_is_advised_where_a_call_takes_none() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError) as caught:
            pg.recv(read_only(), 1 - pg.rank)
        assert str(caught.value).startswith("tensor is read-only, and this operation writes to it")
        assert caught.value.hint == "Pass a writable array"

    await run_cluster(2, main)
