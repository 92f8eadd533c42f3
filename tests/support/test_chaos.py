"""Faults in clusters in one process: what each looks like to the others, and that a seed repeats."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.epochs.regroup import regroup_of
from aiodist.testing import run_cluster, run_virtual
from tests.support.chaos import LOST_AFTER, STORE, Chaos, Crashed


def now() -> float:
    return asyncio.get_running_loop().time()


async def lost(pg: ProcessGroup) -> tuple[float, dist.GroupBroken]:
    """Work until the group breaks → when, and why."""
    while True:
        try:
            await pg.all_reduce(np.ones(4))
            await asyncio.sleep(0.01)
        except dist.GroupBroken as error:
            return now(), error


@pytest.mark.parametrize("silent", [False, True])
def test_a_crash(silent: bool) -> None:
    chaos = Chaos(seed=3)

    async def main(pg: ProcessGroup) -> float:
        await asyncio.sleep(0.1)
        if pg.rank == 1:
            chaos.crash(1, silent=silent)
        when, error = await lost(pg)
        assert isinstance(error, dist.PeerLost)
        assert error.ranks == (1,)
        return when

    results: list[object] = [*run_virtual(run_cluster(3, main, processes=chaos))]
    first, crashed, last = results
    assert isinstance(crashed, Crashed)
    for when in (first, last):
        assert isinstance(when, float)
        assert (when > 0.1 + LOST_AFTER) == silent
        assert when < 0.2 + LOST_AFTER
    assert chaos.faults == {"silent crash" if silent else "crash": 1}
    assert chaos.alive() == [0, 2]


@pytest.mark.parametrize("one_way", [False, True])
def test_a_partition_breaks_connections_only_if_it_lasts(one_way: bool) -> None:
    def play(seconds: float) -> list[bool]:
        chaos = Chaos()

        async def main(pg: ProcessGroup) -> bool:
            await asyncio.sleep(0.1)
            if pg.rank == 0:
                chaos.cut([0], [1], seconds, one_way=one_way)
            try:
                for _ in range(100):
                    await pg.barrier()
                    await asyncio.sleep(0.05)
            except dist.PeerLost:
                return False
            return True

        return run_virtual(run_cluster(2, main, processes=chaos))

    assert play(LOST_AFTER / 2) == [True, True]
    assert play(10.0) == [False, False]


def test_a_store_that_stops_and_a_process_that_is_cut_from_it() -> None:
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> tuple[bool, bool]:
        regroup = regroup_of(pg)
        assert regroup is not None
        store = regroup.job.store
        began = now()
        if pg.rank == 0:
            chaos.stop_store(2.0)
        await store.set(f"a/{pg.rank}", b"1")
        stopped = now() - began > 1.9
        await pg.barrier()
        if pg.rank == 0:
            chaos.cut([1], [STORE], 60)
        await asyncio.sleep(0.1)
        try:
            await store.set(f"b/{pg.rank}", b"1")
        except dist.RendezvousError:
            return stopped, False
        return stopped, True

    assert run_virtual(run_cluster(2, main, processes=chaos)) == [(True, True), (True, False)]


def test_the_same_seed_gives_the_same_times() -> None:
    def play(seed: int) -> list[float]:
        chaos = Chaos(seed)

        async def main(pg: ProcessGroup) -> float:
            chaos.slow(0.5, 1.0, [0])
            if pg.rank == 2:
                chaos.crash_at_step(2, chaos.processes[2].steps + 9)
            return (await lost(pg))[0]

        results = run_virtual(run_cluster(3, main, processes=chaos, return_exceptions=True))
        return [result for result in results if isinstance(result, float)]

    assert len(play(1)) == 2
    assert play(1) == play(1)
    assert play(1) != play(2)
