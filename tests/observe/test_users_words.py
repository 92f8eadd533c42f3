"""What is shown of operations are the user's calls: their names, and their numbers among the user's."""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.observe.host import read_ranks
from aiodist.observe.words import operation
from aiodist.testing import spmd

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")


@spmd(2)
async def test_calls_of_several_steps_are_told_as_the_user_made_them(pg: ProcessGroup) -> None:
    tensor = np.arange(3.0) + pg.rank
    await pg.all_gather_object({"rank": pg.rank})  # the first call of the user's; each takes two numbers
    await pg.all_reduce(tensor)
    await pg.broadcast_object("x" * 9)
    await pg.all_reduce(tensor)
    if pg.rank == 1:
        await pg.recv(np.empty(1), 0)
    else:
        works = [
            pg.all_gather_object("late", async_op=True),
            pg.all_reduce(tensor.copy(), async_op=True),
            pg.recv_object(1, tag=7, async_op=True),
        ]
        async with asyncio.timeout(60):
            while len(told := await asyncio.to_thread(_told)) < 3:  # they are written ten times a second
                pass
        assert sorted(told) == [
            "all_gather_object #5 of world",
            "all_reduce #6 of world",
            "recv_object #0 from rank 1 with tag 7 in world",
        ]
        await pg.send(np.ones(1), 1)
        await works[0]
    if pg.rank == 1:
        await pg.all_gather_object("early")
        await pg.all_reduce(tensor.copy())
        await pg.send_object("an object", 0, tag=7)
    else:
        await works[1]
        await works[2]


def _told() -> list[str]:
    (view,) = read_ranks(pid=os.getpid())
    return [operation(record) for record in view.recording.pending]
