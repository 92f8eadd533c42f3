"""Calls that change who belongs to the job, by example, in virtual time: what they give and raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup, regroup
from aiodist.group.convening import Convening
from aiodist.group.default import find_default
from aiodist.group.job import Job
from aiodist.testing import run_cluster, run_virtual
from aiodist.testing.chaos import Chaos, Crashed
from aiodist.transport.memory import MemoryNetwork
from aiodist.transport.peers import ChannelEndpoint

Main = Callable[[ProcessGroup], Awaitable[Any]]


def run(size: int, main: Main, chaos: Chaos | None = None, timeout: float = 5.0) -> list[Any]:
    """What each rank returned; what one raised is raised."""
    made = Chaos() if chaos is None else chaos
    return run_virtual(run_cluster(size, main, chaos=made, timeout=timeout))


def crash(chaos: Chaos, number: int, after: float = 0.05) -> None:
    asyncio.get_running_loop().call_later(after, chaos.crash, number)


async def total(pg: ProcessGroup) -> int:
    """A sum that shows who takes part."""
    tensor = np.array([1 << pg.rank], np.int64)
    await pg.all_reduce(tensor)
    return int(tensor[0])


async def until_broken(pg: ProcessGroup) -> dist.GroupBroken:
    while True:
        try:
            await total(pg)
        except dist.GroupBroken as error:
            return error


def now() -> float:
    return asyncio.get_running_loop().time()


# ── rebuild ──────────────────────────────────────────────────────────────────────────────────────────────


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


# ── shrink and grow ──────────────────────────────────────────────────────────────────────────────────────


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


async def work_until(pg: ProcessGroup, end: float) -> int:
    """Go on, whoever dies. → the last epoch."""
    while now() < end:
        try:
            await total(pg)
            await asyncio.sleep(0.05)
        except dist.GroupBroken:
            pg = await pg.rebuild(timeout=1)
    return pg.epoch


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
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


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
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


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
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
            await run_cluster(2, main, chaos=chaos, timeout=5.0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(scene())
        assert all(endpoint._closed for process in chaos.processes for _, endpoint in process.endpoints)

    for tick in range(40):
        play(tick * 0.001)


def test_a_newcomer_whose_store_is_gone_is_told_so_soon() -> None:
    chaos = Chaos(hosted=True)

    async def main(pg: ProcessGroup) -> float:
        await asyncio.sleep(0.05)
        if pg.rank == 1:
            chaos.join(_unreached, 60.0)
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
            chaos.join(_unreached, 1.5)
        for _ in range(50):
            assert await total(pg) == 0b11
            await asyncio.sleep(0.01)
        waiting = await pg.pending_joins()
        new = await pg.rebuild(admit=False)
        assert await total(new) == 0b11
        return waiting, new.size

    assert run(2, main, chaos) == [(1, 2)] * 2
    assert isinstance(chaos.joined[0].exception(), dist.RendezvousTimeout)


async def _unreached(pg: ProcessGroup) -> None:
    raise AssertionError("it was admitted")


# ── agree ────────────────────────────────────────────────────────────────────────────────────────────────


def test_agree() -> None:
    async def main(pg: ProcessGroup) -> list[bool]:
        part = await pg.new_group([0, 2])
        found = [await pg.agree(), await pg.agree(pg.rank != 1), await pg.agree(False), await pg.agree(True)]
        if part is not None:
            found += [await part.agree(pg.rank != 1), await part.agree(pg.rank != 2)]
        return found

    assert run(3, main) == [
        [True, False, False, True, True, False],
        [True, False, False, True],
        [True, False, False, True, True, False],
    ]


@pytest.mark.parametrize("hosted", [False, True], ids=["store", "majority"])
def test_agree_is_the_same_on_all_survivors_whenever_one_dies(hosted: bool) -> None:
    answers: set[bool] = set()
    for step in range(1, 30):
        chaos = Chaos(seed=step, hosted=hosted)

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, step: int = step) -> bool:
            if pg.rank == 1:
                chaos.crash_at_step(1, chaos.processes[1].steps + step)
            await asyncio.sleep(0.05)
            answer = await pg.agree()
            await until_broken(pg)
            new = await pg.rebuild()
            assert new.size == 2
            return answer

        first, _, last = run(3, main, chaos)
        assert first is last
        answers.add(first)
    assert answers == {True, False}


def test_agree_where_members_disagree_about_the_operation() -> None:
    async def main(pg: ProcessGroup) -> int:
        with pytest.raises(dist.CollectiveMismatch) as caught:
            await (pg.all_reduce(np.array([10**pg.rank])) if pg.rank == 1 else pg.agree(pg.rank != 2))
        assert sorted(caught.value.said) == [0, 1, 2]
        with pytest.raises(dist.CollectiveMismatch):
            await pg.agree()  # also by who had not called it
        new = await pg.rebuild()
        assert await new.agree()
        return await total(new)

    assert run(3, main) == [0b111] * 3


@pytest.mark.parametrize("flag", [True, False])
def test_what_was_agreed_holds_though_the_next_operation_is_a_mismatch(flag: bool) -> None:
    def delay(src: int, dst: int) -> float:
        return 1.0 if (src, dst) == (1, 2) else 0.001

    async def main(pg: ProcessGroup) -> bool:
        answer = await pg.agree(flag or pg.rank != 1)
        if pg.rank == 2:
            assert isinstance(pg._error, dist.CollectiveMismatch)  # before it had what it needed of rank 1
            return answer
        with pytest.raises(dist.CollectiveMismatch):
            await (pg.all_reduce(np.array([10**pg.rank])) if pg.rank else pg.barrier())
        return answer

    network = MemoryNetwork(delay=delay)
    assert run_virtual(run_cluster(3, main, network=network, timeout=5.0)) == [flag] * 3


# ── the old group and the new ────────────────────────────────────────────────────────────────────────────


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
    assert all(group._closing is not None and group._closing.done() for group in closed)


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
            await run_cluster(3, main, chaos=chaos, timeout=5.0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(scene())
        assert all(endpoint._closed for process in chaos.processes for _, endpoint in process.endpoints)

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


# ── closing that is cancelled ────────────────────────────────────────────────────────────────────────────


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
    monkeypatch.setattr(ChannelEndpoint, "_close_all", forever)  # nobody answers goodbye

    async def main(pg: ProcessGroup) -> None:
        await pg.rebuild()
        me = chaos.processes[pg.rank]
        assert me.job is not None
        closing = asyncio.create_task(pg.aclose())
        await asyncio.sleep(0.1)
        assert len(me.job.background) == 1  # the old epoch
        await cancel_until_done(closing)
        assert not me.job.background
        assert [endpoint._closed for _, endpoint in me.endpoints] == [True, True]

    run(2, main, chaos)


@pytest.mark.parametrize("where", ["let_go", "stop"])
def test_no_epoch_outlives_a_closing_that_is_cancelled_in_a_call_for_the_next(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letting go may take threads their time, and stopping to convene a store its own."""
    chaos = Chaos()
    monkeypatch.setattr(regroup if where == "let_go" else Convening, where, forever)

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
        assert [endpoint._closed for _, endpoint in me.endpoints] == [True, True]
        with pytest.raises(dist.GroupClosed, match="epoch 1"):
            await call

    run(2, main, chaos)


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
