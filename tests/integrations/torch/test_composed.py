"""A monitored barrier: it names who is late, leaves the group whole, and takes no late word for a new one.
Sums of sparse tensors: of one form on all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.base.errors import CollectiveMismatch
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster

torch = pytest.importorskip("torch")
composed = pytest.importorskip("aiodist.integrations.torch.composed")
monitored_barrier, sparse_all_reduce = composed.monitored_barrier, composed.sparse_all_reduce


async def test_who_is_late_is_named_and_its_late_word_counts_for_nothing() -> None:
    async def member(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier in 50 ms"):
                await monitored_barrier(pg, 1, 0.05, True)
            await pg.barrier()
            await pg.barrier()  # both have come late to the first by now
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 50 ms"):
                await monitored_barrier(pg, 2, 0.05, False)
            await pg.barrier()
        else:
            await pg.barrier()
            with pytest.raises(RuntimeError, match=f"Rank {pg.rank} successfully reached monitoredBarrier"):
                await monitored_barrier(pg, 1, 0.05, True)
            await pg.barrier()
            await pg.barrier()
        await monitored_barrier(pg, 3, 60, False)
        total = np.array([pg.rank + 1.0])
        await pg.all_reduce(total)
        assert total[0] == 6

    await run_cluster(3, member)


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ((3, 3), (4, 4), r"float32\[3, 3\], 2 of 2 .*float32\[4, 4\], 2 of 2"),
        ((2, 4), (2, 3), r"float32\[2, 4\], 2 of 2 .*float32\[2, 3\], 2 of 2"),
        ((5,), (5, 5), r"float32\[5\], 1 of 1 .*float32\[5, 5\], 2 of 2"),
    ],
)
async def test_sparse_tensors_of_other_shapes_are_not_added(
    first: tuple[int, ...], other: tuple[int, ...], said: str
) -> None:
    """A rank got indices that its shape has not, which torch then wrote to beyond the end of the memory."""

    async def member(pg: ProcessGroup) -> None:
        total = await sparse_all_reduce(pg, torch.ones(first).to_sparse(), ReduceOp.SUM)
        assert total.to_dense().eq(2).all()
        mine = torch.ones(other if pg.rank else first).to_sparse()
        with pytest.raises(CollectiveMismatch, match=said):
            await sparse_all_reduce(pg, mine, ReduceOp.SUM)

    await run_cluster(2, member)
