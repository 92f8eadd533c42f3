"""A newcomer whose members die before it has their values: it must not begin anew as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos

STEPS = 6


def rule(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    values += gradient


async def sync(pg: ProcessGroup, reached: list[int]) -> None:
    values, step = np.zeros(3), np.zeros((), np.int64)
    sync = await dist.GradientSync(pg, [values], elastic=True, state=[step])
    reached.append(int(step))
    while step < STEPS:
        sync.ready(0, np.ones(3))
        if averages := await sync.finish():
            values += averages[0]
            step += 1
        await asyncio.sleep(0.01)
    assert (values == STEPS).all()


async def sharded(pg: ProcessGroup, reached: list[int]) -> None:
    values = np.zeros(3)
    optimizer = await dist.ShardedOptimizer(pg, [values], rule, elastic=True, redundancy=1)
    reached.append(optimizer.steps)
    while optimizer.steps < STEPS:
        await optimizer.step([np.ones(3)])
        await asyncio.sleep(0.01)
    assert (values == STEPS).all()


async def diloco(pg: ProcessGroup, reached: list[int]) -> None:
    values = np.zeros(3)
    diloco = await dist.DiLoCo(pg, [values], sync_every=1, outer_lr=1.0, outer_momentum=0.0, elastic=True)
    reached.append(diloco.steps)
    while diloco.steps < STEPS:
        values += 1
        await diloco.step()
        await asyncio.sleep(0.01)
    assert (values == STEPS).all()


TRAININGS = [sync, diloco, sharded]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("train", "error"), [(sync, dist.QuorumLost), (diloco, dist.QuorumLost), (sharded, dist.StateLost)]
)
def test_it_says_so(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]], error: type[dist.AiodistError]
) -> None:
    """The only member dies before each of the newcomer's first steps in the group that both form."""
    said = begun = 0
    for step in range(1, 40):
        chaos, reached = Chaos(step), list[int]()

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, reached: list[int] = reached) -> None:
            if pg.rank == 0 and not chaos.joined:
                asyncio.get_running_loop().call_later(0.025, chaos.join, newcomer, 20.0)
            await train(pg, reached)

        async def newcomer(
            pg: ProcessGroup, chaos: Chaos = chaos, reached: list[int] = reached, step: int = step
        ) -> None:
            chaos.crash_at_step(0, chaos.processes[0].steps + step)
            await train(pg, reached)

        run_virtual(run_cluster(1, main, processes=chaos, return_exceptions=True))
        [joined] = chaos.joined
        if (failed := joined.exception()) is None:
            begun += 1
        else:
            assert isinstance(failed, error), failed
            assert "newcomer" in str(failed) or "died with the members" in str(failed)
            said += 1
        assert reached[0] == 0 and all(steps > 0 for steps in reached[1:])
    assert said and begun


@pytest.mark.parametrize("train", few(TRAININGS, [sync]))
def test_one_that_came_over_two_epochs_says_so_too(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]],
) -> None:
    """A member dies while the newcomer comes, which is given the next epoch's group; then the other one does.
    It was taken for one that had been there from the beginning, and trained anew from step 0."""
    came = 0
    for step in range(11, 21):
        chaos, reached, epochs = Chaos(step), list[int](), list[int]()

        def join(chaos: Chaos, newcomer: Callable[[ProcessGroup], Awaitable[None]], step: int = step) -> None:
            chaos.join(newcomer, 20.0)
            chaos.crash_at_step(1, chaos.processes[1].steps + step)

        async def newcomer(
            pg: ProcessGroup, chaos: Chaos = chaos, reached: list[int] = reached, epochs: list[int] = epochs
        ) -> None:
            epochs.append(pg.epoch)
            chaos.crash_at_step(0, chaos.processes[0].steps + 2)
            await train(pg, reached)

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, join: Any = join, who: Any = newcomer) -> None:
            if pg.rank == 0:
                asyncio.get_running_loop().call_later(0.025, join, chaos, who)
            await train(pg, [])

        run_virtual(run_cluster(2, main, processes=chaos, return_exceptions=True))
        if epochs == [2]:
            came += 1
            failed = chaos.joined[0].exception()
            assert isinstance(failed, dist.QuorumLost | dist.StateLost) or reached > [0], failed
    assert came


@pytest.mark.parametrize("train", few(TRAININGS, [sync]))
def test_one_whose_members_die_while_it_comes_says_so_too(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]],
) -> None:
    """They had admitted it, and the first group that it is given has no other member."""
    alone = 0
    for step in range(5, 12):
        chaos, reached, sizes = Chaos(step), list[int](), list[int]()

        async def newcomer(pg: ProcessGroup, reached: list[int] = reached, sizes: list[int] = sizes) -> None:
            sizes.append(pg.size)
            await train(pg, reached)

        def join(chaos: Chaos = chaos, who: Any = newcomer, step: int = step) -> None:
            chaos.join(who, 20.0)
            chaos.crash_at_step(0, chaos.processes[0].steps + step)

        async def main(pg: ProcessGroup, join: Any = join) -> None:
            asyncio.get_running_loop().call_later(0.025, join)
            await train(pg, [])

        run_virtual(run_cluster(1, main, processes=chaos, return_exceptions=True))
        if sizes == [1]:
            alone += 1
            failed = chaos.joined[0].exception()
            assert isinstance(failed, dist.QuorumLost | dist.StateLost) and not reached, failed
    assert alone


@pytest.mark.parametrize("train", few(TRAININGS, [diloco]))
def test_one_that_calls_rebuild_itself_first_says_so_too(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]],
) -> None:
    """It was taken for one of the beginning, as its epoch is not that in which it came."""
    alone = 0
    for step in range(1, 8):
        chaos, reached, sizes = Chaos(step), list[int](), list[int]()

        async def newcomer(
            pg: ProcessGroup,
            chaos: Chaos = chaos,
            reached: list[int] = reached,
            sizes: list[int] = sizes,
            step: int = step,
        ) -> None:
            chaos.crash_at_step(0, chaos.processes[0].steps + step)
            pg = await pg.rebuild()
            sizes.append(pg.size)
            await train(pg, reached)

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, who: Any = newcomer) -> None:
            asyncio.get_running_loop().call_later(0.025, chaos.join, who, 20.0)
            await train(pg, [])

        run_virtual(run_cluster(1, main, processes=chaos, return_exceptions=True))
        if sizes == [1]:
            alone += 1
            failed = chaos.joined[0].exception()
            assert isinstance(failed, dist.QuorumLost | dist.StateLost) and not reached, failed
    assert alone


@pytest.mark.parametrize("train", few(TRAININGS, [diloco]))
def test_one_that_came_before_there_were_values_begins(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]],
) -> None:
    """The only member of the beginning dies in the first steps of the training, before a step is done."""
    begun = 0
    for step in range(1, 8):
        chaos, reached, sizes = Chaos(step), list[int](), list[int]()

        async def newcomer(pg: ProcessGroup, reached: list[int] = reached, sizes: list[int] = sizes) -> None:
            pg = await pg.rebuild()
            await train(pg, reached)
            sizes.append(pg.size)

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, who: Any = newcomer, step: int = step) -> None:
            chaos.join(who, 20.0)
            pg = await (await pg.grow()).rebuild()
            chaos.crash_at_step(0, chaos.processes[0].steps + step)
            await train(pg, [])

        run_virtual(run_cluster(1, main, processes=chaos, return_exceptions=True))
        assert chaos.joined[0].exception() is None
        begun += reached == [0] and sizes == [2]
    assert begun


@pytest.mark.parametrize("train", few(TRAININGS, [sharded]))
def test_one_that_has_had_values_trains_another_model(
    train: Callable[[ProcessGroup, list[int]], Awaitable[None]],
) -> None:
    """The others die in the first steps of the second training, in the epoch in which it came."""
    begun = 0
    for step in range(1, 8):
        chaos, reached = Chaos(step), list[int]()

        async def twice(pg: ProcessGroup, chaos: Chaos, reached: list[int], step: int) -> None:
            values, done = np.full(3, float(pg.epoch)), np.zeros((), np.int64)
            first = await dist.GradientSync(pg, [values], elastic=True, state=[done])
            while done < STEPS:
                first.ready(0, np.ones(3))
                done += bool(await first.finish())
                await asyncio.sleep(0.01)
            if first.pg.rank == 0:
                chaos.crash_at_step(0, chaos.processes[0].steps + step)
            await train(first.pg, reached)

        def join(chaos: Chaos = chaos, reached: list[int] = reached, step: int = step) -> None:
            chaos.join(lambda pg: twice(pg, chaos, reached, step), 20.0)

        async def main(pg: ProcessGroup, chaos: Chaos = chaos, join: Any = join, step: int = step) -> None:
            asyncio.get_running_loop().call_later(0.025, join)
            await twice(pg, chaos, [], step)

        run_virtual(run_cluster(1, main, processes=chaos, return_exceptions=True))
        assert chaos.joined[0].exception() is None
        begun += reached == [0]
    assert begun
