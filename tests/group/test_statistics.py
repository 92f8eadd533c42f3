"""Counts of a group and of its parts."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, spmd
from aiodist.transport.memory import MemoryNetwork
from tests.levels import COSTLY


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_between_processes_of_a_host(pg: ProcessGroup) -> None:
    before = pg.statistics()
    held = pg.empty(1000, np.float32)
    for count in (3, 3, 5):
        await pg.all_reduce(np.ones(count))
    if pg.rank == 0:
        await pg.send(np.ones(3), 1)
    else:
        await pg.recv(np.ones(3), 0)
    work = None if pg.rank else pg.all_reduce(np.ones(7), async_op=True)
    after = pg.statistics()
    assert after["operations"]["issued"] - before["operations"]["issued"] == (4 if work else 3)
    assert after["operations"]["in_flight"] == (1 if work else 0)
    assert after["local"]["plans"] - before["local"]["plans"] == (3 if work else 2)
    assert after["local"]["running"] == (1 if work else 0)
    assert after["segment"]["arrays"] == before["segment"]["arrays"] + 1
    assert after["segment"]["taken_bytes"] - before["segment"]["taken_bytes"] >= held.nbytes
    assert after["segment"]["bytes"] > after["segment"]["taken_bytes"]
    assert (after["links"]["outgoing"], after["links"]["incoming"]) == ((1, 0) if work else (0, 1))
    assert after["links"]["outgoing_shm"] == after["links"]["outgoing"]
    await (work or pg.all_reduce(np.ones(7)))
    del held
    assert pg.statistics()["segment"]["arrays"] == before["segment"]["arrays"]
    assert pg.statistics()["operations"]["in_flight"] == 0


async def test_over_channels() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(np.ones(3))
        found = pg.statistics()
        assert "local" not in found and "segment" not in found
        assert found["channels"] == {"running": 0, "early": 0}
        assert found["operations"]["in_flight"] == 0
        assert found["links"]["outgoing"] == 1
        assert found["links"]["outgoing_shm"] == 0

    await run_cluster(2, main, network=MemoryNetwork())


def test_page() -> None:
    """The documentation names every count."""
    text = ProcessGroup.statistics.__doc__
    assert text is not None
    for name in ("issued", "in_flight", "plans", "kept_exchanges", "taken_bytes", "early", "outgoing_shm"):
        assert f"`{name}`" in text
