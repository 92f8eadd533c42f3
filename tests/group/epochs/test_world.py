"""Worlds come and go: several groups end at once, nobody is forgotten, and nothing is kept of the gone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist import _engine
from aiodist.backends.choice import BackendChoice
from aiodist.base.errors import Evicted
from aiodist.group import ProcessGroup
from aiodist.group.epochs.beginning import first_epoch
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.world import PROTOCOL, Settings, World
from aiodist.group.membership.record import UID_BYTES
from aiodist.rendezvous import HashStore
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork
from tests.helpers import core_of, error_of


def test_two_groups_that_break_at_once_each_tell_their_own_cause() -> None:
    async def main(pg: ProcessGroup) -> None:
        one, two = await pg.new_group([0, 1, 2]), await pg.new_group()
        assert two is not None
        if pg.rank == 1:
            assert one is not None
            one.abort("first")
            one.abort("again")  # the first cause stays
            two.abort("second")
        works = [(one, "first"), (two, "second")] if one is not None else [(two, "second")]
        for group, reason in works:
            assert group is not None
            error = await error_of(group.all_reduce(np.zeros(3)))
            assert isinstance(error, dist.GroupAborted)
            assert (error.rank, error.reason, error.group) == (1, reason, group.name)
        assert (await pg.all_reduce(np.array([pg.rank])))[0] == 6

    run_virtual(run_cluster(4, main))


def test_two_causes_of_one_group_at_once_end_it_once_on_every_rank() -> None:
    async def main(pg: ProcessGroup) -> str:
        pg.abort(f"by {pg.rank}")
        error = await error_of(pg.barrier())
        assert isinstance(error, dist.GroupAborted)
        return error.reason

    reasons = run_virtual(run_cluster(3, main))
    assert reasons[0] == "by 0"
    assert set(reasons) <= {"by 0", "by 1", "by 2"}


def test_rank_that_the_others_gave_up_is_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            core_of(pg).control.lose(2, "it spoke nonsense")
        error = await error_of(pg.recv(np.zeros(1), (pg.rank + 1) % 3))
        if pg.rank == 2:
            assert isinstance(error, Evicted)
            assert "it spoke nonsense" in str(error)
            assert isinstance(await error_of(pg.barrier()), Evicted)
        else:
            assert isinstance(error, dist.PeerLost)
            assert error.ranks == (2,)
        assert asyncio.get_running_loop().time() < 1

    run_virtual(run_cluster(3, main))


async def test_groups_of_others_leave_nothing_behind() -> None:
    async def main(pg: ProcessGroup) -> None:
        for _ in range(20):
            pair = await pg.new_group([0, 1])
            if pair is not None:
                await pair.all_reduce(np.zeros(3))
                await pair.aclose()
        await pg.barrier()
        assert not core_of(pg).control._early
        assert len(core_of(pg).control._listeners) == 2  # the group, and who hears of the next epoch

    await run_cluster(3, main)


def test_cancelled_close_of_a_world_aborts_all_its_groups() -> None:
    async def main(pg: ProcessGroup) -> None:
        one, two = await pg.new_group(), await pg.new_group()
        assert one is not None and two is not None
        if pg.rank == 0:
            works = [group.all_reduce(np.zeros(3), async_op=True) for group in (one, two, pg)]
            task = asyncio.create_task(pg.aclose())
            await asyncio.sleep(1)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [type(work.exception()) for work in works] == [dist.GroupAborted] * 3
        else:
            for group in (one, two, pg):
                assert isinstance(await error_of(group.recv(np.zeros(1), 0)), dist.GroupAborted)
        assert asyncio.get_running_loop().time() < 3

    run_virtual(run_cluster(2, main))


def job_of(network: MemoryNetwork, store: HashStore, rank: int, gone: list[int]) -> Job:
    """One rank's, over memory channels."""

    async def open_endpoint(rank: int, place: str) -> MemoryEndpoint:
        return MemoryEndpoint(network, rank)

    async def leave() -> None:
        gone.append(rank)

    settings = Settings("world", "job", "auto", {}, 60.0, inline=True, uid=bytes([rank]) * UID_BYTES)
    return Job(settings.uid, f"rank {rank}", settings, store, open_endpoint, leave, host="memory")


async def world_of(job: Job, rank: int, size: int) -> World:
    """Its first."""
    return World(await job.open_endpoint(rank, ""), size, job.settings, job.end)


def test_init_that_is_cancelled_half_way_leaves_no_timer_and_the_others_are_told() -> None:
    async def main() -> None:
        network, store, gone = MemoryNetwork(delay=lambda src, dst: 1.0), HashStore(), list[int]()
        jobs = [job_of(network, store, rank, gone) for rank in range(3)]
        opening = [
            asyncio.create_task(first_epoch(job, await world_of(job, rank, 3), store))
            for rank, job in enumerate(jobs)
        ]
        await asyncio.sleep(1.5)  # linked, and in the barrier
        opening[1].cancel()
        results = await asyncio.gather(*opening, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        for result in (results[0], results[2]):
            assert isinstance(result, dist.GroupBroken)
        assert sorted(gone) == [0, 1, 2]
        assert asyncio.get_running_loop().time() < 10
        await store.aclose()
        loop: Any = asyncio.get_running_loop()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() > 20]

    run_virtual(main())


def test_rank_that_dies_before_it_links_is_named_at_once() -> None:
    async def main() -> None:
        network, store, gone = MemoryNetwork(), HashStore(), list[int]()
        job = job_of(network, store, 0, gone)
        first = await world_of(job, 0, 2)
        opening = asyncio.create_task(first_epoch(job, first, store))
        cards = {
            "protocol": PROTOCOL,
            "byteorder": "little",
            "host": "b",
            "pid": 5,
            "pids": "",
            "sentries": [],
            "agreed": {},
            "uid": b"someone",
            "hosts": False,
            "seat": ["", -1, -1],
            "backend": BackendChoice().card(),
            "engine": _engine.NAME,
            "endpoint": {},
        }
        import msgpack

        await store.gather("world/cards", 2, 1, msgpack.packb(cards), 10)
        await store.gather("world/local", 2, 1, msgpack.packb([]), 10)
        await asyncio.sleep(1)
        first._links.process_ended(1, 5)  # rank 1 dials, and dies before it does
        with pytest.raises(dist.PeerLost, match="process 5 ended") as caught:
            await opening
        assert caught.value.ranks == (1,)
        assert gone == [0]
        assert asyncio.get_running_loop().time() < 2
        await store.aclose()

    run_virtual(main())


@pytest.mark.parametrize("end", ["aclose", "abandon"])
def test_whatever_fails_at_the_end_the_endpoint_is_closed(end: str) -> None:
    async def main() -> None:
        endpoint, left = MemoryEndpoint(MemoryNetwork(), 0), list[str]()

        async def leave() -> None:
            left.append("left")

        world = World(endpoint, 1, Settings(*("world", "job", "auto", {}, 5.0), inline=True), leave)

        def parting() -> None:
            raise ZeroDivisionError

        world.parting = parting
        with pytest.raises(ZeroDivisionError):
            await getattr(world, end)()
        assert endpoint.closed and left == ["left"]
        await getattr(world, end)()

    run_virtual(main())
