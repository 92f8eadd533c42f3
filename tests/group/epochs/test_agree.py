"""`agree`: the same answer on all survivors."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.control.core import HOPS
from aiodist.group.control.messages import EVERYBODY, Message, Say
from aiodist.testing import run_cluster, run_virtual
from aiodist.transport.memory import MemoryNetwork
from tests.group.epochs.elastic import crash, now, run, total, until_broken
from tests.helpers import core_of
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos, Crashed


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


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosted", few([False, True], [True]), ids=["store", "majority"])
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
            # Before it had what it needed of rank 1.
            assert isinstance(core_of(pg).error, dist.CollectiveMismatch)
            return answer
        with pytest.raises(dist.CollectiveMismatch):
            await (pg.all_reduce(np.array([10**pg.rank])) if pg.rank else pg.barrier())
        return answer

    network = MemoryNetwork(delay=delay)
    assert run_virtual(run_cluster(3, main, network=network, timeout=5.0)) == [flag] * 3


# ── cuts ─────────────────────────────────────────────────────────────────────────────────────────────


SEEDS = (3, 6, 10, 11, 12, 13, 16, 21)


def cut_meanwhile(seed: int, hosted: bool) -> dict[int, bool]:
    """The answers of the members that go on together, where the network is cut while they agree."""
    draw = random.Random(f"cut/{seed}")
    size = draw.randint(4, 7)
    a = draw.sample(range(size), draw.choice([1, 1, 2]))
    rest = [rank for rank in range(size) if rank not in a]
    b = rest if draw.random() < 0.6 else draw.sample(rest, draw.randint(1, len(rest)))
    at = 0.05 + draw.uniform(0.0, 0.002)
    victim = draw.choice([None, None, draw.randrange(size)])
    dies = 0.05 + draw.uniform(0.0, 0.004) + draw.choice([0.0, 1.25])
    chaos = Chaos(seed, hosted=hosted)
    answers: dict[int, bool] = {}

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            loop = asyncio.get_running_loop()
            loop.call_later(at, chaos.cut, a, b)
            if victim is not None:
                loop.call_later(dies, chaos.crash, victim)
        await asyncio.sleep(0.05)
        answer = await pg.agree()
        await until_broken(pg)
        await pg.rebuild(min_size=size // 2 + 1, timeout=3)
        answers[pg.rank] = answer

    run_virtual(run_cluster(size, main, processes=chaos, timeout=5.0, return_exceptions=True))
    return answers


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *(pytest.param(seed, marks=pytest.mark.slow("more seeds")) for seed in SEEDS[2:])]
)
@pytest.mark.parametrize("hosted", few([False, True], [False]), ids=["store", "majority"])
def test_agree_is_the_same_on_all_that_go_on_together_however_the_network_is_cut(
    seed: int, hosted: bool
) -> None:
    answers = cut_meanwhile(seed, hosted)
    assert len(set(answers.values())) <= 1, answers


# ── who leaves, and who is evicted ───────────────────────────────────────────────────────────────────


def test_those_that_leave_tell_each_groups_answer() -> None:
    answers: dict[int, bool] = {}
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> None:
        parts = [await pg.new_group([rank]) for rank in range(pg.size)]
        await pg.barrier()
        if pg.rank == 4:
            chaos.cut([4], [2], one_way=True)
            asyncio.get_running_loop().call_later(0.05, lambda: chaos.crash(4, silent=True))
        answers[pg.rank] = await pg.agree()
        part = parts[pg.rank]
        assert part is not None
        assert await part.agree()

    run_virtual(run_cluster(5, main, processes=chaos, timeout=5.0, return_exceptions=True))
    answers.pop(4, None)
    assert answers == dict.fromkeys(range(4), True)


@pytest.mark.parametrize("knows", [True, False], ids=["before", "meanwhile"])
def test_a_member_that_the_others_count_as_lost_is_told_so_by_agree(knows: bool) -> None:
    chaos, given_up = Chaos(), asyncio.Event()

    async def main(pg: ProcessGroup) -> int:
        control = core_of(pg).control
        if pg.rank == 1:
            crash(chaos, 1)
        await until_broken(pg)
        if pg.rank == 0:
            await asyncio.sleep(0.1)
            control.lose(2, "it was stopped")
            given_up.set()
            assert not await pg.agree()
            return (await pg.rebuild()).size
        await given_up.wait()
        news = Message(Say.lost, 0, 1000, EVERYBODY, HOPS, (2, "it was stopped", -1))
        asyncio.get_running_loop().call_soon(control.received, 0, news.encode())
        if knows:
            await asyncio.sleep(0)
        began = now()
        with pytest.raises(dist.Evicted, match="as lost: it was stopped"):
            await pg.agree()
        assert now() == began
        return 0

    size, crashed, none = run(3, main, chaos)
    assert (size, none) == (1, 0) and isinstance(crashed, Crashed)
