"""`agree`: the same answer on all survivors."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from aiodist.transport.memory import MemoryNetwork
from tests.group.epochs.elastic import run, total, until_broken
from tests.helpers import core_of
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos


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
