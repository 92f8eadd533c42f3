"""Membership calls, closing and joining that are cancelled: what goes on, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.core import GroupCore
from aiodist.group.epochs.convening import Convening
from aiodist.group.epochs.job import Job
from aiodist.testing import run_cluster, run_virtual
from aiodist.transport.peers import Endpoint
from tests.group.epochs.elastic import run, total, work_until
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos


def test_a_cancelled_rebuild_goes_on_and_the_next_call_takes_it_up() -> None:
    async def main(pg: ProcessGroup) -> tuple[int, int]:
        if pg.rank == 1:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await pg.rebuild()
            await asyncio.sleep(1)
            new = await pg.rebuild()
        else:
            await asyncio.sleep(0.5)
            new = await pg.rebuild()
        return new.epoch, await total(new)

    assert run(3, main) == [(1, 0b111)] * 3


@pytest.mark.slow(COSTLY)
def test_the_group_may_be_closed_at_any_moment_of_a_cancelled_rebuild() -> None:
    def play(after: float) -> None:
        chaos = Chaos()

        async def main(pg: ProcessGroup) -> None:
            await asyncio.sleep(0.05)
            if pg.rank:
                await work_until(await pg.rebuild(timeout=1), 0.5)
                return
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after):
                    await pg.rebuild(timeout=1)
                    raise TimeoutError

        async def scene() -> None:
            await run_cluster(3, main, processes=chaos, timeout=5.0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(scene())
        assert all(endpoint.closed for process in chaos.processes for _, endpoint in process.endpoints)

    for tick in range(40):
        play(tick * 0.0005)


def test_a_cancelled_rebuild_that_nobody_takes_up_ends_with_the_group() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pg.rebuild()

    async def first_alone(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            await main(pg)
        else:
            await asyncio.sleep(1)

    run(2, first_alone)


async def cancel_until_done(task: asyncio.Task[Any]) -> None:
    """Stop waiting for it as often as it takes; each time it gets a while to end well."""
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.cancelled()


async def forever(*_: object) -> None:
    """It lasts."""
    await asyncio.get_running_loop().create_future()


def test_an_old_epoch_does_not_outlive_a_closing_that_is_cancelled_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chaos = Chaos()
    monkeypatch.setattr(Endpoint, "_close_all", forever)  # nobody answers goodbye

    async def main(pg: ProcessGroup) -> None:
        await pg.rebuild()
        me = chaos.processes[pg.rank]
        assert me.job is not None
        closing = asyncio.create_task(pg.aclose())
        await asyncio.sleep(0.1)
        assert len(me.job.background) == 1  # the old epoch
        await cancel_until_done(closing)
        assert not me.job.background
        assert [endpoint.closed for _, endpoint in me.endpoints] == [True, True]

    run(2, main, chaos)


@pytest.mark.parametrize("where", ["let_go", "stop"])
def test_no_epoch_outlives_a_closing_that_is_cancelled_in_a_call_for_the_next(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letting go may take threads their time, and stopping to convene a store its own."""
    chaos = Chaos()
    monkeypatch.setattr(GroupCore if where == "let_go" else Convening, where, forever)

    async def main(pg: ProcessGroup) -> None:
        call = asyncio.ensure_future(pg.rebuild())
        me = chaos.processes[pg.rank]
        assert me.job is not None
        await asyncio.sleep(0.5)
        assert len(me.endpoints) == 2  # the next epoch is there
        closing = asyncio.create_task(pg.aclose())
        await asyncio.sleep(0.01)
        await cancel_until_done(closing)
        assert not me.job.background
        assert [endpoint.closed for _, endpoint in me.endpoints] == [True, True]
        with pytest.raises(dist.GroupClosed, match="epoch 1"):
            await call

    run(2, main, chaos)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosted", few([False, True], [True]), ids=["store", "majority"])
def test_a_newcomer_that_is_cancelled_leaves_nothing_behind(hosted: bool) -> None:
    def play(after: float) -> None:
        chaos = Chaos(hosted=hosted)

        async def newcomer(pg: ProcessGroup) -> None:
            await work_until(pg, 2.0)

        async def main(pg: ProcessGroup) -> None:
            await asyncio.sleep(0.05)
            if pg.rank == 0:
                task = chaos.join(newcomer, 5.0).task
                assert task is not None
                asyncio.get_running_loop().call_later(after, task.cancel)
            try:
                pg = await pg.grow(1, timeout=0.3)
            except dist.RendezvousTimeout:
                pass
            await work_until(pg, 1.0)

        async def scene() -> None:
            await run_cluster(2, main, processes=chaos, timeout=5.0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(scene())
        assert all(endpoint.closed for process in chaos.processes for _, endpoint in process.endpoints)

    for tick in range(40):
        play(tick * 0.001)


@pytest.mark.parametrize("turns", range(1, 8))
def test_nothing_is_left_of_a_newcomer_that_is_cancelled_twice(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos = Chaos()
    ended: list[str] = []
    end = Job.end

    async def noted(self: Job) -> None:
        await end(self)
        ended.append(self.words)

    monkeypatch.setattr(Job, "end", noted)

    async def main(pg: ProcessGroup) -> int:
        await asyncio.sleep(0.1)
        before = asyncio.all_tasks()
        newcomer = chaos.join(total, 10).task
        assert newcomer is not None
        await asyncio.sleep(0.1)
        newcomer.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        newcomer.cancel()
        await asyncio.wait([newcomer])
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == before
        assert ended == ["process 1"]
        return await total(pg)

    assert run(1, main, chaos) == [1]
