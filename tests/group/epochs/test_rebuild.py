"""`rebuild`, by example: who is in the next epoch, and what becomes of the group before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.default import find_default
from aiodist.testing import run_cluster, run_virtual
from tests.group.epochs.elastic import crash, now, run, total, until_broken
from tests.helpers import core_of
from tests.support.chaos import Chaos, Crashed


@pytest.mark.parametrize("place", ["store", "majority", "majority on one host"])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_rebuild_after_a_crash(victim: int, place: str) -> None:
    # On one host the next store is where the last one was.
    chaos = Chaos(hosted=place != "store", hosts=[0] * 4 if "one" in place else None)

    async def main(pg: ProcessGroup) -> tuple[int, int, int, int]:
        if pg.rank == victim:
            crash(chaos, victim, 0.01)
        error = await until_broken(pg)
        assert isinstance(error, dist.PeerLost)
        assert error.ranks == (victim,)
        assert error.epoch == 0
        began = now()
        new = await pg.rebuild()
        assert now() - began < 0.2  # nobody is waited for who is known to be dead
        with pytest.raises(dist.GroupClosed, match="It became epoch 1: use the group that"):
            await pg.barrier()
        assert await total(new) == 0b111
        return pg.rank, new.rank, new.size, new.epoch

    results = run(4, main, chaos)
    assert isinstance(results.pop(victim), Crashed)
    survivors = [rank for rank in range(4) if rank != victim]
    assert results == [(old, new, 3, 1) for new, old in enumerate(survivors)]


def test_rebuild_after_an_abort() -> None:
    async def main(pg: ProcessGroup) -> int:
        if pg.rank == 1:
            await asyncio.sleep(0.05)
            pg.abort("enough")
        error = await until_broken(pg)
        assert isinstance(error, dist.GroupAborted)
        new = await pg.rebuild()
        assert new.size == 3
        return await total(new)

    assert run(3, main) == [0b111] * 3


def test_rebuild_after_a_timeout() -> None:
    async def main(pg: ProcessGroup) -> int:
        if pg.rank != 2:
            with pytest.raises(dist.CollectiveTimeout) as caught:
                await pg.barrier(timeout=0.5)
            assert caught.value.missing == (2,)
        else:
            await asyncio.sleep(1)
        new = await pg.rebuild()
        return await total(new)

    assert run(3, main) == [0b111] * 3


def test_rebuild_after_a_mismatch() -> None:
    async def main(pg: ProcessGroup) -> int:
        with pytest.raises(dist.CollectiveMismatch):
            await (pg.barrier() if pg.rank else pg.all_reduce(np.zeros(3)))
        return await total(await pg.rebuild())

    assert run(3, main) == [0b111] * 3


def test_voluntary_rebuild_waits_for_what_is_in_flight() -> None:
    async def main(pg: ProcessGroup) -> list[int]:
        tensor = np.array([pg.rank + 1])
        work = pg.all_reduce(tensor, async_op=True)
        new = await pg.rebuild()
        assert work.done()
        await work
        return [int(tensor[0]), new.epoch, new.rank]

    assert run(3, main) == [[6, 1, rank] for rank in range(3)]


def test_many_epochs() -> None:
    async def main(pg: ProcessGroup) -> int:
        for epoch in range(1, 8):
            pg = await pg.rebuild()
            assert pg.epoch == epoch
            assert await total(pg) == 0b11
        return pg.epoch

    assert run(2, main) == [7, 7]


def test_a_second_death_during_rebuild_and_the_conveners() -> None:
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> tuple[int, ...]:
        if pg.rank == 2:
            crash(chaos, 2)
        await until_broken(pg)
        if pg.rank == 0:
            crash(chaos, 0, 0.002)  # it convenes
        new = await pg.rebuild()
        return new.size, await total(new)

    results = run(4, main, chaos)
    assert isinstance(results[0], Crashed)
    assert results[1] == results[3] == (2, 0b11)


def test_a_member_that_does_not_call_is_evicted() -> None:
    async def main(pg: ProcessGroup) -> str:
        if pg.rank == 0:
            await asyncio.sleep(3)
            with pytest.raises(dist.Evicted, match="join"):
                await pg.barrier()
            with pytest.raises(dist.Evicted):
                await pg.rebuild()
            return "evicted"
        new = await pg.rebuild(timeout=1)
        assert now() < 2
        return f"{new.rank} of {new.size}"

    assert run(3, main) == ["evicted", "0 of 2", "1 of 2"]


def test_min_size() -> None:
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            crash(chaos, 0)
        await until_broken(pg)
        with pytest.raises(dist.QuorumLost, match=r"2.*3"):
            await pg.rebuild(min_size=3, timeout=1)

    run(3, main, chaos)


def test_min_size_counts_newcomers_who_come_in_time() -> None:
    chaos = Chaos()

    async def newcomer(pg: ProcessGroup) -> int:
        return await total(pg)

    async def main(pg: ProcessGroup) -> int:
        if pg.rank == 0:
            crash(chaos, 0)
            await asyncio.sleep(1)
        await until_broken(pg)
        if pg.rank == 1:
            asyncio.get_running_loop().call_later(0.5, chaos.join, newcomer, 5.0)
        new = await pg.rebuild(min_size=3, timeout=2)
        return await total(new)

    assert run(3, main, chaos)[1:] == [0b111, 0b111]
    assert [task.result() for task in chaos.joined] == [0b111]


def test_a_majority_goes_on_and_a_minority_does_not() -> None:
    chaos = Chaos(hosted=True)

    async def main(pg: ProcessGroup) -> str:
        await asyncio.sleep(0.05)
        if pg.rank == 0:
            chaos.cut([0, 1], [2, 3, 4], 60)
        await until_broken(pg)
        try:
            new = await pg.rebuild(timeout=2)
        except (dist.QuorumLost, dist.Evicted) as error:
            return type(error).__name__
        return f"{new.size} in epoch {new.epoch}"

    results = run(5, main, chaos)
    assert results[2:] == ["3 in epoch 1"] * 3
    assert set(results[:2]) <= {"QuorumLost", "Evicted"}


def test_of_two_the_one_that_lives_goes_on_if_it_has_proof() -> None:
    def play(hosts: list[int]) -> str:
        chaos = Chaos(hosted=True, hosts=hosts)

        async def main(pg: ProcessGroup) -> str:
            if pg.rank == 0:
                crash(chaos, 0)
            await until_broken(pg)
            try:
                return f"{(await pg.rebuild(timeout=1)).size}"
            except dist.QuorumLost:
                return "no quorum"

        return str(run(2, main, chaos)[1])

    assert play([0, 0]) == "1"
    assert play([0, 1]) == "no quorum"


def test_wrong_arguments() -> None:
    async def main(pg: ProcessGroup) -> None:
        wrong: list[Callable[[], Awaitable[Any]]] = [
            lambda: pg.rebuild(min_size=0),
            lambda: pg.grow(0),
            lambda: pg.shrink([pg.rank]),
            lambda: pg.shrink([7]),
            lambda: pg.shrink([-1]),
            lambda: pg.rebuild(timeout=-1),
        ]
        for call in wrong:
            with pytest.raises(dist.UsageError):
                await call()
        part = await pg.new_group([0, 1])
        assert part is not None
        for call in (part.rebuild, part.grow, part.shrink, part.pending_joins):
            with pytest.raises(dist.UsageError, match="world"):
                await call()
        assert await total(pg) == 0b11  # nothing was sent, no number taken

    run(2, main)


def test_the_old_group_is_closed_and_closes_the_new_one() -> None:
    closed: list[ProcessGroup] = []

    async def main(pg: ProcessGroup) -> None:
        part = await pg.new_group([0, 1])
        assert find_default() is pg
        new = await pg.rebuild()
        assert find_default() is new
        for group in (pg, part):
            assert group is not None
            with pytest.raises(dist.GroupClosed):
                await group.barrier()
        with pytest.raises(dist.GroupClosed):
            await pg.rebuild()
        closed.append(new)  # nobody closes it here: run_cluster's `async with` holds the first epoch's group

    run(2, main)
    for group in closed:
        ended = core_of(group)._closing
        assert ended is not None
        assert ended.done()


def test_an_older_group_than_the_last_one_closes_the_latest() -> None:
    async def main(pg: ProcessGroup) -> None:
        second = await pg.rebuild()
        third = await second.rebuild()
        assert await total(third) == 0b11
        await (pg if third.rank else second).aclose()
        with pytest.raises(dist.GroupClosed):
            await third.barrier()

    run(2, main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that begin at once came with Python 3.12")
def test_a_draft_that_fails_is_followed_by_another_where_tasks_begin_at_once() -> None:
    """A second member dies at each of many steps of the first draft."""
    for step in range(1, 60, 4):
        chaos = Chaos()

        def begin(loop: Any, steps: Any, **named: Any) -> Any:
            late = "run_cluster.<locals>" in steps.__qualname__  # chaos wants its own ranks' tasks later
            return asyncio.Task(steps, loop=loop, eager_start=not late, **named)  # type: ignore[call-arg]

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, step: int = step) -> int:
            if pg.rank == 3:
                crash(chaos, 3, 0.01)
            await until_broken(pg)
            if pg.rank == 1:
                chaos.crash_at_step(1, chaos.processes[1].steps + step)
            while True:
                began = now()
                pg = await pg.rebuild(admit=False)
                assert now() - began < 10
                try:
                    await total(pg)
                    await pg.barrier()
                    return pg.size
                except dist.GroupBroken:
                    pass

        async def cluster(main: Any = main, chaos: Chaos = chaos) -> list[Any]:
            asyncio.get_running_loop().set_task_factory(begin)
            return await run_cluster(4, main, processes=chaos, timeout=30.0, return_exceptions=True)

        results = run_virtual(cluster())
        assert [type(result) for result in (results[0], results[2])] == [int, int], f"step {step}: {results}"
