"""A rank leaves a group and works on in another: who still waits in the first gets its end, and no result.

The groups lie in the same memory, one after the other, and their operations have the same numbers.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from aiodist.base.errors import GroupBroken
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY, few

TIMES = 12


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("how", ["abort", "close"])
@pytest.mark.parametrize("kind", few(["all_reduce", "broadcast", "barrier"], ["broadcast"]))
@spmd(world_size=3, transport="shm")
async def test_another_group_is_no_answer(pg: ProcessGroup, kind: str, how: str) -> None:
    """Rank 1 waits in a group of ranks 0 and 1, and is stopped while rank 0 goes over to rank 2."""
    pids = [int(row[0]) for row in await pg.all_gather(np.array([os.getpid()]))]
    for turn in range(TIMES):
        mark = 1000.0 * turn

        async def call(group: ProcessGroup, mark: float = mark) -> None:
            tensor = np.arange(4) + mark + pg.rank * 100
            if kind == "barrier":
                await group.barrier()
            elif kind == "broadcast":
                await group.broadcast(tensor, 0)
            else:
                await group.all_reduce(tensor)

        first = await pg.new_group([0, 1])
        if first is not None:
            await call(first)
        await pg.barrier()
        if pg.rank == 1:
            assert first is not None
            await pg.send(np.zeros(1), 0)
            with pytest.raises(GroupBroken):
                await call(first)
            await first.aclose()
        else:
            if first is not None:
                await pg.recv(np.zeros(1), 1)
                os.kill(pids[1], signal.SIGSTOP)
                if how == "abort":
                    first.abort("enough")
                await first.aclose()
            second = await pg.new_group([0, 2], use_local_synchronization=True)
            assert second is not None
            for _ in range(3):
                await call(second, mark + 7)
            if pg.rank == 0:
                os.kill(pids[1], signal.SIGCONT)
            await pg.barrier()  # all have gone on; only now may the second group's memory be given back
            await second.aclose()
            continue
        await pg.barrier()
