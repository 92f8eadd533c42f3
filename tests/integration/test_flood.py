"""Messages that nobody receives yet: stored up to a budget, beyond it only announced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.net.wire.frame import HEADER
from aiodist.testing import run_cluster, run_virtual, spmd
from aiodist.transport import EAGER_BUDGET, EAGER_MESSAGE
from aiodist.transport.memory import MemoryNetwork
from tests.helpers import host_of
from tests.levels import COSTLY, few
from tests.support.channel_pair import turn_until

FLOOD = 600
MARK = np.zeros(8, np.uint8)


def message(number: int, nbytes: int) -> Any:
    """Distinct values for each message and element."""
    return (np.arange(nbytes, dtype=np.int64) * 7 + number).astype(np.uint8)


def stored(pg: ProcessGroup, source: int) -> list[int]:
    """Bytes of each message from a rank that waits here for a receive; 0 where it is only offered."""
    arrivals = host_of(pg).messages.arrivals
    return [
        len(one.data) if one.data is not None else 0
        for of_tag in arrivals.values()
        for one in of_tag.values()
        if one.source == source
    ]


async def check_flood(pg: ProcessGroup, nbytes: int) -> None:
    """Rank 0 floods rank 1, which looks at what it stores, and only then receives."""
    everything = FLOOD * nbytes
    eager = min(EAGER_BUDGET // (nbytes + HEADER), FLOOD) if nbytes <= EAGER_MESSAGE else 0
    if pg.rank == 0:
        works = [pg.send(message(n, nbytes), 1, tag=n % 3, async_op=True) for n in range(FLOOD)]
        await pg.send(MARK, 1, tag=9)
        done = [work.done() for work in works]
        assert sum(done) <= eager
        assert done == sorted(done, reverse=True)  # the first ones left, the others wait
        await pg.barrier()
        for work in works:
            await work
    elif pg.rank == 1:
        await pg.recv(np.empty_like(MARK), 0, tag=9)
        await turn_until(lambda: len(stored(pg, 0)) == FLOOD)  # the mark may have overtaken some
        kept = stored(pg, 0)
        assert sum(kept) + HEADER * sum(size > 0 for size in kept) <= EAGER_BUDGET < everything
        await pg.barrier()
        tensor = np.empty(nbytes, np.uint8)
        for n in reversed(range(3)):  # the other way round than they were sent
            for number in range(n, FLOOD, 3):
                await pg.recv(tensor, 0, tag=n)
                assert np.array_equal(tensor, message(number, nbytes))
        assert stored(pg, 0) == []
    else:
        await pg.barrier()
    summed = await pg.all_reduce(np.array([pg.rank + 1]))  # the channel is as good as before
    assert summed[0] == sum(range(1, pg.size + 1))


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("nbytes", few([200, EAGER_MESSAGE, 50_000], [50_000]))
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))
@spmd(world_size=2)
async def test_flood_between_processes(pg: ProcessGroup, transport: str, nbytes: int) -> None:
    await check_flood(pg, nbytes)


@pytest.mark.parametrize(
    "nbytes", few([200, EAGER_MESSAGE, EAGER_MESSAGE + 1, 150_000], [EAGER_MESSAGE, EAGER_MESSAGE + 1])
)
def test_flood_in_one_process(nbytes: int) -> None:
    delays = np.random.default_rng(nbytes)
    network = MemoryNetwork(delay=lambda src, dst: float(delays.exponential(0.001)))
    run_virtual(run_cluster(3, lambda pg: check_flood(pg, nbytes), network=network))
