"""Splits on which a pair disagrees, and outputs that cannot be written: told, never carried out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from aiodist.transport.memory import MemoryNetwork
from tests.levels import few


async def error_and_seconds(pg: ProcessGroup, work: Any) -> tuple[BaseException, float]:
    """What a Work, or else the next barrier, fails with, and after how many virtual seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await work
        await pg.barrier()
    except dist.AiodistError as error:
        return error, loop.time() - began
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("width", [1, 40_000])
@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("form", ["single", "list"])
def test_splits_that_disagree_are_told_to_both_at_once(width: int, more: bool, form: str) -> None:
    """Rank 0 sends 3 rows to rank 1, which expects more, or fewer; small rows and large ones."""

    async def main(pg: ProcessGroup) -> None:
        gives, takes = [2, 3, 1], [2, 2, 1]
        if pg.rank == 1:
            gives, takes = [2, 2, 1], [4 if more else 2, 2, 1]
        elif pg.rank == 2:
            gives, takes = [1, 1, 1], [1, 1, 1]
        inputs = [np.full((rows, width), pg.rank) for rows in gives]
        outputs = [np.zeros((rows, width), np.int64) for rows in takes]
        if form == "list":
            work = dist.all_to_all(outputs, inputs, async_op=True)
        else:
            work = dist.all_to_all_single(
                np.concatenate(outputs), np.concatenate(inputs), takes, gives, async_op=True
            )
        error, waited = await error_and_seconds(pg, work)
        assert isinstance(error, dist.CollectiveMismatch), error
        assert error.said == {
            0: f"all_to_all sends {3 * width} elements to rank 1",
            1: f"all_to_all expects {(4 if more else 2) * width} elements from rank 0",
        }
        assert waited < 0.5

    run_virtual(run_cluster(3, main))


def test_splits_on_one_side_only_are_a_mismatch() -> None:
    async def main(pg: ProcessGroup) -> None:
        rows = [2, 2] if pg.rank else None
        error, waited = await error_and_seconds(
            pg, pg.all_to_all(np.zeros(4), None, rows, rows, async_op=True)
        )
        assert isinstance(error, dist.CollectiveMismatch)
        assert waited < 0.5

    run_virtual(run_cluster(2, main))


def read_only(*shape: int) -> Any:
    """An array that nobody may write."""
    array = np.zeros(shape)
    array.flags.writeable = False
    return array


def repeated(*shape: int) -> Any:
    """An array whose rows are all the same memory."""
    base = np.zeros(shape[1:])
    return np.lib.stride_tricks.as_strided(base, shape, (0, *base.strides))


X = np.zeros((2, 2))
OUTPUTS: list[tuple[str, Callable[[ProcessGroup, Any], Any], tuple[int, ...]]] = [
    ("all_reduce in place", lambda pg, out: pg.all_reduce(out), (2, 2)),
    ("all_reduce", lambda pg, out: pg.all_reduce(X, out=out), (2, 2)),
    ("broadcast", lambda pg, out: pg.broadcast(out, 1 - pg.rank), (2, 2)),
    ("reduce in place", lambda pg, out: pg.reduce(out, pg.rank), (2, 2)),
    ("reduce", lambda pg, out: pg.reduce(X, pg.rank, out=out), (2, 2)),
    ("all_gather", lambda pg, out: pg.all_gather(X, out), (2, 2, 2)),
    ("all_gather list", lambda pg, out: dist.all_gather([out, np.zeros((2, 2))], X), (2, 2)),
    ("into tensor", lambda pg, out: dist.all_gather_into_tensor(out, X), (4, 2)),
    ("reduce_scatter", lambda pg, out: pg.reduce_scatter(X, out), (1, 2)),
    ("reduce_scatter list", lambda pg, out: dist.reduce_scatter(out, [X, X]), (2, 2)),
    ("gather", lambda pg, out: pg.gather(X, pg.rank, out), (2, 2, 2)),
    ("gather list", lambda pg, out: dist.gather(X, [np.zeros((2, 2)), out], pg.rank), (2, 2)),
    ("scatter", lambda pg, out: pg.scatter(out, None, 1 - pg.rank), (2, 2)),
    ("all_to_all", lambda pg, out: pg.all_to_all(X, out), (2, 2)),
    ("all_to_all list", lambda pg, out: dist.all_to_all([np.zeros(2), out], [X, X]), (2, 2)),
    ("recv", lambda pg, out: pg.recv(out, 1 - pg.rank), (2, 2)),
]

NEW = {"all_reduce in place", "broadcast", "reduce in place", "scatter"}
"""Calls that give a new value where the tensor is read-only (`test_values`)."""


@pytest.mark.parametrize("make", [read_only, repeated])
async def test_outputs_that_cannot_be_written_are_refused_at_the_call(make: Callable[..., Any]) -> None:
    async def main(pg: ProcessGroup) -> None:
        before = pg.issued_count()
        for name, call, shape in OUTPUTS:
            if make is read_only and name in NEW:
                continue
            out = make(*(shape if shape[0] > 1 else (2, *shape[1:])))
            with pytest.raises(dist.UsageError, match=r"read-only|overlaps itself"):
                call(pg, out)
                pytest.fail(name)
        assert pg.issued_count() == before  # none took a number: the ranks still agree
        await pg.barrier()

    await run_cluster(2, main)


OVERLAPS: list[tuple[str, Callable[[ProcessGroup, Any], Any]]] = [
    ("all_reduce", lambda pg, b: pg.all_reduce(b[:4], out=b[2:6])),
    ("reduce", lambda pg, b: pg.reduce(b[:4], pg.rank, out=b[2:6])),
    ("all_gather", lambda pg, b: pg.all_gather(b[:4], b[2:10].reshape(2, 4))),
    ("all_gather list", lambda pg, b: dist.all_gather([b[:4], b[3:7]], b[8:])),
    ("into tensor", lambda pg, b: dist.all_gather_into_tensor(b[:8], b[7:11])),
    ("reduce_scatter", lambda pg, b: pg.reduce_scatter(b[:4], b[3:5])),
    ("reduce_scatter list", lambda pg, b: dist.reduce_scatter(b[:4], [b[4:8], b[3:7]])),
    ("gather", lambda pg, b: pg.gather(b[:4], pg.rank, b[3:11].reshape(2, 4))),
    ("gather list", lambda pg, b: dist.gather(b[:4], [b[4:8], b[7:11]], pg.rank)),
    ("scatter", lambda pg, b: pg.scatter(b[:4], b[2:10].reshape(2, 4), pg.rank)),
    ("scatter list", lambda pg, b: dist.scatter(b[:4], [b[4:8], b[:4]], pg.rank)),
    ("all_to_all", lambda pg, b: pg.all_to_all(b[:4], b[2:6])),
    ("all_to_all list", lambda pg, b: dist.all_to_all([b[:2], b[1:3]], [b[6:8], b[8:10]])),
    ("all_to_all in and out", lambda pg, b: dist.all_to_all([b[:2], b[3:5]], [b[6:8], b[4:6]])),
]


async def test_outputs_that_overlap_are_refused_at_the_call() -> None:
    async def main(pg: ProcessGroup) -> None:
        before = pg.issued_count()
        for name, call in OVERLAPS:
            with pytest.raises(dist.UsageError, match="share memory"):
                call(pg, np.arange(12.0))
                pytest.fail(name)
        assert pg.issued_count() == before
        await pg.barrier()

    await run_cluster(2, main)


@pytest.mark.parametrize("size", few([3, 4], [3]))
def test_after_a_mismatch_no_later_collective_succeeds(size: int) -> None:
    """Two roots of a broadcast, each of which only sends: whoever hears both takes part in nothing more, so
    that the next barrier fails on every rank, however slowly the members find out what happened."""

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        root = 1 if pg.rank == 1 else 0
        error, _ = await error_and_seconds(pg, pg.broadcast(np.zeros(4, np.float32), root, async_op=True))
        assert isinstance(error, dist.CollectiveMismatch)
        assert "rank 1: broadcast(float32[4], src=1)" in str(error)

    for seed in range(40):
        delays = random.Random(seed)
        network = MemoryNetwork(lambda src, dst, of=delays: of.choice([0, 1, 1, 2, 5]) * 1e-3)  # type: ignore[misc]
        run_virtual(run_cluster(size, main, network=network))
