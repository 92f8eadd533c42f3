"""The short way takes what the long way takes, where it can."""

from __future__ import annotations

import numpy as np

from aiodist.group import ProcessGroup
from aiodist.roles import Kind
from aiodist.testing import spmd


@spmd(transport="shm")
async def test_joined_results_go_the_short_way_as_stacked_ones_do(pg: ProcessGroup) -> None:
    mine = np.arange(6.0).reshape(2, 3) + 10 * pg.rank
    both = np.concatenate([np.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(pg.size)])
    short = pg._core.short
    assert short is not None
    for shape in ((pg.size, 2, 3), (pg.size * 2, 3)):
        out = np.empty(shape)
        work = short.start(Kind.all_gather, mine, out, False)
        assert work is not None
        assert await work is out
        assert np.array_equal(out.reshape(both.shape), both)
        out = np.empty(shape)
        assert await pg.gather(mine, 0, out if pg.rank == 0 else None) is (out if pg.rank == 0 else None)
        assert pg.rank or np.array_equal(out.reshape(both.shape), both)
        part = np.empty((2, 3))
        work = short.start(Kind.scatter, part, both.reshape(shape) if pg.rank == 0 else None, False, root=0)
        assert work is not None
        await work
        assert np.array_equal(part, mine)
    assert short.start(Kind.all_gather, mine, np.empty((2, 6)), False) is None
