"""`grow` and `shrink`, by example, and newcomers that die, or wait in vain, while a group grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.default import find_default
from tests.group.epochs.elastic import crash, now, run, total, unreached, until_broken, work_until
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
@pytest.mark.parametrize("away", [0, 2])
def test_shrink(away: int, hosted: bool) -> None:
    chaos = Chaos(hosted=hosted)

    async def main(pg: ProcessGroup) -> Any:
        if pg.rank == away:
            with pytest.raises(dist.Evicted):
                await pg.barrier()
            return "evicted"
        began = now()
        new = await pg.shrink([away])
        assert now() - began < 0.2  # who is excluded need not call, and is not waited for
        return new.rank, await total(new)

    results = run(4, main, chaos)
    assert results.pop(away) == "evicted"
    assert results == [(rank, 0b111) for rank in range(3)]


def test_shrink_of_nobody_only_drops_the_lost_and_admits_nobody() -> None:
    chaos = Chaos()

    async def newcomer(pg: ProcessGroup) -> None:
        raise AssertionError("it was admitted")

    async def main(pg: ProcessGroup) -> int:
        if pg.rank == 0:
            chaos.join(newcomer, 0.5)
            crash(chaos, 0, 0.1)
        await until_broken(pg)
        new = await pg.shrink()
        assert new.epoch == 1
        return await total(new)

    assert run(3, main, chaos)[1:] == [0b11, 0b11]
    assert isinstance(chaos.joined[0].exception(), dist.RendezvousTimeout)


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
def test_grow(hosted: bool) -> None:
    chaos = Chaos(hosted=hosted)

    async def newcomer(pg: ProcessGroup) -> tuple[int, int, int]:
        assert find_default() is pg
        return pg.rank, pg.epoch, await total(pg)

    async def main(pg: ProcessGroup) -> tuple[int, int, int]:
        if pg.rank == 1:
            for _ in range(2):
                asyncio.get_running_loop().call_later(0.3, chaos.join, newcomer, 5.0)
        new = await pg.grow(2)
        return new.rank, new.epoch, await total(new)

    assert run(3, main, chaos) == [(rank, 1, 0b11111) for rank in range(3)]
    assert sorted(task.result() for task in chaos.joined) == [(3, 1, 0b11111), (4, 1, 0b11111)]


def test_grow_with_too_few_leaves_the_old_group_as_it_was() -> None:
    chaos = Chaos()

    async def newcomer(pg: ProcessGroup) -> int:
        return await total(pg)

    async def main(pg: ProcessGroup) -> tuple[int, int]:
        for _ in range(3):
            with pytest.raises(dist.RendezvousTimeout, match="group is as it was"):
                await pg.grow(1, timeout=0.2)
            assert await total(pg) == 0b111
        if pg.rank == 0:
            chaos.join(newcomer, 5.0)
        new = await pg.grow(1)
        return new.epoch, await total(new)

    assert run(3, main, chaos) == [(1, 0b1111)] * 3


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosted", few([False, True], [True]), ids=["store", "majority"])
def test_a_convener_that_dies_when_a_grow_was_decided_takes_nobody_with_it(hosted: bool) -> None:
    """At every step of the convener's: the call is decided for all, or void for all."""

    def play(step: int) -> list[Any]:
        chaos = Chaos(hosted=hosted, hosts=[0, 0, 0, 0])

        async def newcomer(pg: ProcessGroup) -> int:
            return await work_until(pg, 2.0)

        async def main(pg: ProcessGroup) -> int:
            await asyncio.sleep(0.05)
            if pg.rank == 1:
                asyncio.get_running_loop().call_later(0.19, chaos.join, newcomer, 9.0)
            if pg.rank == 0:
                chaos.crash_at_step(0, chaos.processes[0].steps + step)
            try:
                pg = await pg.grow(1, timeout=0.2)
            except dist.RendezvousTimeout:
                pass
            except dist.GroupBroken:
                pg = await pg.rebuild(timeout=1)
            return await work_until(pg, 2.0)

        return run(3, main, chaos)

    for step in range(1, 70, 2):
        assert all(epoch >= 1 for epoch in play(step)[1:])


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosted", few([False, True], [False]), ids=["store", "majority"])
def test_a_newcomer_that_dies_at_any_step_while_the_group_grows(hosted: bool) -> None:
    async def newcomer(pg: ProcessGroup) -> None:
        await until_broken(pg)

    def play(step: int) -> list[int]:
        chaos = Chaos(seed=step, hosted=hosted)

        async def main(pg: ProcessGroup) -> int:
            if pg.rank == 0:
                chaos.crash_at_step(chaos.join(newcomer, 5.0).number, step)
            try:
                pg = await pg.grow(1, timeout=0.5)
            except dist.RendezvousTimeout:
                return await total(pg)  # as it was
            chaos.crash(2)
            return await work_until(pg, now() + 1.0)

        return run(2, main, chaos)

    for step in range(1, 50, 2):
        assert all(play(step))


def test_a_newcomer_whose_store_is_gone_is_told_so_soon() -> None:
    chaos = Chaos(hosted=True)

    async def main(pg: ProcessGroup) -> float:
        await asyncio.sleep(0.05)
        if pg.rank == 1:
            chaos.join(unreached, 60.0)
            crash(chaos, 0, 0.1)
        await until_broken(pg)
        await asyncio.wait(chaos.joined)
        return now()

    assert run(3, main, chaos)[1] < 5
    with pytest.raises(dist.RendezvousError, match="store at which this process waited is gone"):
        chaos.joined[0].result()


def test_newcomers_are_seen_after_the_stores_host_is_gone() -> None:
    chaos = Chaos(hosted=True)

    async def newcomer(pg: ProcessGroup) -> int:
        return await total(pg)

    async def main(pg: ProcessGroup) -> int:
        if pg.rank == 0:
            crash(chaos, 0)
        await until_broken(pg)
        new = await pg.rebuild()
        if new.rank == 0:
            chaos.join(newcomer, 5.0)
        while not await new.pending_joins():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return await total(await new.rebuild())

    assert run(3, main, chaos)[1:] == [0b111] * 2
    assert [task.result() for task in chaos.joined] == [0b111]


def test_a_newcomer_does_not_disturb_what_is_in_flight_and_may_be_left_waiting() -> None:
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> tuple[int, int]:
        if pg.rank == 0:
            chaos.join(unreached, 1.5)
        for _ in range(50):
            assert await total(pg) == 0b11
            await asyncio.sleep(0.01)
        waiting = await pg.pending_joins()
        new = await pg.rebuild(admit=False)
        assert await total(new) == 0b11
        return waiting, new.size

    assert run(2, main, chaos) == [(1, 2)] * 2
    assert isinstance(chaos.joined[0].exception(), dist.RendezvousTimeout)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_who_asks_for_newcomers_notices_a_member_that_leaves_at_once(leaver: int) -> None:
    async def main(pg: ProcessGroup) -> int:
        for _ in range(3):
            assert await pg.pending_joins() == 0
        if pg.rank == leaver:
            await pg.aclose()
            return 0
        await asyncio.sleep(1)  # the goodbye is here
        began = now()
        with pytest.raises(dist.PeerLost, match=f"lost rank {leaver}: it closed the group") as caught:
            await pg.pending_joins()
        assert "see where that rank leaves" in caught.value.hint
        assert now() - began < 0.05
        return await total(await pg.rebuild())

    results = run(3, main, Chaos())
    assert results.pop(leaver) == 0
    assert results == [0b11] * 2
