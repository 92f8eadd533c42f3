"""Receives between processes end when nothing more can come, also where there was never a message."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.spmd import spmd
from tests.levels import COSTLY, few


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("transport", "before"),
    few(product(["shm", "tcp"], [False, True]), [("shm", True), ("tcp", False)]),
)
@spmd(world_size=3)
async def test_a_rank_that_leaves_ends_what_waits_for_it(
    pg: ProcessGroup, before: bool, transport: str
) -> None:
    await pg.barrier()
    if pg.rank == 1:
        if before:
            await pg.send_object("the last", 0)
        return
    if pg.rank == 0:
        if before:
            assert await pg.recv_object(1) == "the last"
        with pytest.raises(dist.PeerClosed) as caught:
            await pg.recv(np.zeros(3), 1)
        assert caught.value.ranks == (1,)
        await pg.send_object("go", 2)
        with pytest.raises(dist.PeerClosed) as caught:
            await pg.recv_object()
        assert caught.value.ranks == (1, 2)
    else:
        assert await pg.recv_object(0) == "go"
