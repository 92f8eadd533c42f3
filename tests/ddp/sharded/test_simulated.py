"""ShardedOptimizer in simulated time: a member dies at any moment, and a newcomer comes at any."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import RendezvousTimeout, UsageError
from aiodist.ddp import ShardedOptimizer
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.levels import MORE, few
from tests.support.chaos import Chaos, Crashed
from tests.trainings.programs import merged

STEPS, ITEMS = 12, 60


def momentum(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity += gradient - velocity / 4
    values -= velocity / (8 * state["count"])


def gradients(step: int, rank: int, size: int) -> list[np.ndarray]:
    """A rank's share of a step's items, times the size: whole numbers, with averages that are the same for
    any size."""
    mine = size * sum(1 + number + step for number in range(ITEMS) if number % size == rank)
    return [np.full(count, mine * (1 + count % 3), np.float64) for count in (7, 1, 12)]


def fresh() -> list[np.ndarray]:
    return [np.zeros(count) for count in (7, 1, 12)]


def without_deaths() -> list[bytes]:
    values, states = fresh(), [dict[str, Any]() for _ in range(3)]
    for step in range(STEPS):
        for one, gradient, state in zip(values, gradients(step, 0, 1), states, strict=True):
            momentum(one, gradient, state)
    return [one.tobytes() for one in values]


@pytest.mark.parametrize("seed", few(range(100), range(4), MORE))
def test_values_are_those_of_a_run_without_deaths(seed: int) -> None:
    drawn = random.Random(seed)
    size, copies, whole = drawn.randint(2, 5), drawn.randint(1, 2), drawn.random() < 0.3
    victim, step = drawn.randrange(size), drawn.randint(1, 120)
    dies, comes = drawn.uniform(0, 0.015), drawn.uniform(0, 0.01)
    chaos = Chaos(seed)

    async def train(pg: ProcessGroup) -> list[bytes]:
        mine = fresh()
        optimizer = await ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=copies, whole=whole)
        while optimizer.steps < STEPS:
            await asyncio.sleep(0.002)
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        return [one.tobytes() for one in mine]

    async def main(pg: ProcessGroup) -> list[bytes]:
        loop = asyncio.get_running_loop()
        if pg.rank == victim:
            loop.call_later(dies, lambda: chaos.crash_at_step(victim, chaos.processes[victim].steps + step))
        if pg.rank == 0:
            loop.call_later(comes, chaos.join, train, 30.0)
        return await train(pg)

    results: list[Any] = run_virtual(run_cluster(size, main, processes=chaos))
    wanted = without_deaths()
    assert len(chaos.joined) == 1
    for found in (*results, chaos.joined[0].result()):
        assert isinstance(found, Crashed) or found == wanted


def test_a_newcomer_that_does_not_reach_the_members_stops_nobody() -> None:
    """The store hears it, so it waits there for longer than anything else takes."""
    chaos, ends = Chaos(3), []

    async def main(pg: ProcessGroup) -> list[bytes]:
        mine, loop = fresh(), asyncio.get_running_loop()
        optimizer = await ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=1)
        while optimizer.steps < STEPS:
            if optimizer.steps == 3 and pg.rank == 0 and not chaos.joined:
                waits = chaos.join(main, 600.0)
                chaos.cut(range(3), [waits.number])
            await asyncio.sleep(2)
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        ends.append(loop.time())
        return [one.tobytes() for one in mine]

    assert run_virtual(run_cluster(3, main, processes=chaos)) == [without_deaths()] * 3
    assert isinstance(chaos.joined[0].exception(), RendezvousTimeout)
    assert max(ends) < 300


def velocity_when_needed(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    """A rule that makes its entry where there is a gradient at last."""
    if gradient.any():
        state["velocity"] = state.get("velocity", np.zeros_like(values)) + gradient
        values -= state["velocity"]


def count_when_needed(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    """A rule whose entry is a number: of the steps in which there was a gradient."""
    state["count"] = state.get("count", 0) + bool(gradient.any())
    values -= gradient * state["count"]


@pytest.mark.parametrize(("rule", "name"), [(velocity_when_needed, "velocity"), (count_when_needed, "count")])
@pytest.mark.parametrize("first", [0, 4])
def test_pieces_with_other_entries_are_not_joined(rule: Any, name: str, first: int) -> None:
    """All members are told, also where the first of them is the one without the entry; a state that was
    saved before can be loaded."""
    message = f"state '{name}' is not the same for all pieces of trained array 0.*for the first time"
    some, parts = np.zeros(12), list[Any]()
    some[first : first + 8] = 1.0

    async def main(pg: ProcessGroup) -> list[float]:
        values = np.zeros(12)
        optimizer = await ShardedOptimizer(pg, [values], rule, elastic=True, redundancy=1)
        parts.append(copy.deepcopy(optimizer.state_dict()))
        for _ in range(2):
            assert await optimizer.step([some])
        before = values.copy()
        if pg.rank == 2:
            return []
        for call in (lambda: optimizer.step([some]), optimizer.synced):
            with pytest.raises(UsageError, match=message):
                await call()
        with pytest.raises(UsageError, match="Write `await optimizer` first"):
            await optimizer.step([some])
        assert (values == before).all() and optimizer.steps == 2
        optimizer.load_state_dict(merged(parts))
        await optimizer
        assert optimizer.pg.size == 2 and optimizer.steps == 0
        assert await optimizer.step([np.ones(12)])
        return values.tolist()

    results: list[Any] = run_virtual(run_cluster(3, main, processes=Chaos(1)))
    assert results == [[-1.0] * 12, [-1.0] * 12, []]


class Shelf:
    """What each rank saved, in place of a folder."""

    def __init__(self) -> None:
        self.parts: dict[int, Any] = {}

    async def save(self, optimizer: ShardedOptimizer) -> None:
        self.parts[optimizer.pg.rank] = copy.deepcopy(optimizer.state_dict())
        await optimizer.pg.barrier()

    def saved(self) -> dict[str, Any]:
        return merged([copy.deepcopy(part) for part in self.parts.values()])


async def _alone(pg: ProcessGroup, ranks: set[int], chaos: Chaos) -> None:
    """End all other ranks at once, when all are here."""
    await pg.barrier()
    await asyncio.sleep(0.1)  # virtual: all have left it
    if pg.rank not in ranks:
        for rank in set(range(pg.size)) - ranks:
            chaos.crash(rank)
        await asyncio.sleep(1000)
    await asyncio.sleep(0.1)


def test_restore_is_called_again_where_a_death_interrupts_it() -> None:
    """It had loaded, and not given `state` its values; training went on with the step that it had loaded and
    with the `state` of another one."""
    chaos, shelf = Chaos(), Shelf()

    async def main(pg: ProcessGroup) -> tuple[int, float, list[bytes]]:
        me, mine, counter = pg.rank, fresh(), np.zeros(1)
        epochs: list[int] = []

        async def restore(optimizer: ShardedOptimizer) -> None:
            epochs.append(optimizer.pg.epoch)
            if shelf.parts:
                optimizer.load_state_dict(shelf.saved())
                if me == 1:
                    chaos.crash(1)
                await optimizer.pg.barrier()  # as a load ends
                counter[:] = 3

        optimizer = await ShardedOptimizer(
            pg, mine, momentum, elastic=True, redundancy=1, restore=restore, state=[counter]
        )

        async def step() -> None:
            given = gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size)
            if await optimizer.step(given):
                counter[:] = optimizer.steps

        while optimizer.steps < 5:
            await step()
            if optimizer.steps == 3:
                await shelf.save(optimizer)
        await _alone(pg, {0, 1}, chaos)  # ranks 2 and 3 have a share that nobody else has
        await step()
        assert epochs == [0, 1, 2] and (optimizer.steps, counter[0]) == (3, 3)
        while optimizer.steps < STEPS:
            await step()
        return optimizer.steps, float(counter[0]), [one.tobytes() for one in mine]

    results: list[Any] = run_virtual(run_cluster(4, main, processes=chaos))
    assert [isinstance(one, Crashed) for one in results] == [False, True, True, True]
    assert results[0] == (STEPS, STEPS, without_deaths())


def minus(values: np.ndarray, gradient: np.ndarray, _state: dict[str, Any]) -> None:
    values -= gradient


def test_shares_that_only_some_ranks_have_loaded_are_not_joined() -> None:
    """A death interrupts a load. Both states are of the same step, and the model was a part of each."""
    chaos, shelf = Chaos(), Shelf()

    async def main(pg: ProcessGroup) -> list[bytes]:
        me, mine = pg.rank, fresh()
        optimizer = await ShardedOptimizer(pg, mine, minus, elastic=True, redundancy=1)
        await optimizer.step([one + 5 for one in fresh()])
        await shelf.save(optimizer)
        optimizer.load_state_dict({**shelf.saved(), "steps": 0})
        await optimizer
        await optimizer.step([one + 70 for one in fresh()])  # this step is another one than the saved
        await _alone(pg, {0, 1}, chaos)
        if me == 0:
            optimizer.load_state_dict(shelf.saved())
            waits: Any = optimizer.synced()
        else:
            waits = optimizer.step(fresh())
        with pytest.raises(UsageError, match="rank 0 has loaded a state, and rank 1 has not"):
            await waits
        optimizer.load_state_dict(shelf.saved())
        await optimizer
        assert await optimizer.step(fresh())
        return [one.tobytes() for one in mine]

    results: list[Any] = run_virtual(run_cluster(3, main, processes=chaos))
    assert isinstance(results[2], Crashed)
    assert results[0] == results[1] == [(one - 5).tobytes() for one in fresh()]


@pytest.mark.parametrize("steps", [2, 1])
def test_what_a_newcomer_has_loaded_itself_takes_no_part_of_the_model(steps: int) -> None:
    """Of the members' step it became the values of a share; of another step all members were refused."""
    chaos, shelf = Chaos(), Shelf()

    async def train(pg: ProcessGroup, joins: bool) -> tuple[int, int, list[bytes]]:
        mine = fresh()
        optimizer = ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=1)
        if joins:
            for part in shelf.parts.values():
                for told in part["arrays"].values():
                    for _, one in told["values"].parts:
                        one += 1000  # another model's
            optimizer.load_state_dict({**shelf.saved(), "steps": steps})
        await optimizer
        while optimizer.steps < STEPS:
            if optimizer.steps == 2 and optimizer.pg.size == 2:
                if optimizer.pg.rank not in shelf.parts:
                    await shelf.save(optimizer)
                if optimizer.pg.rank == 0 and not chaos.joined:
                    chaos.join(lambda newcomers: train(newcomers, True), 30.0)
                await asyncio.sleep(2)  # virtual: it waits by then
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        return optimizer.steps, optimizer.pg.size, [one.tobytes() for one in mine]

    results = run_virtual(run_cluster(2, lambda pg: train(pg, False), processes=chaos))
    for found in (*results, chaos.joined[0].result()):
        assert found == (STEPS, 3, without_deaths())


def test_what_a_newcomer_has_loaded_takes_no_part_either_where_it_rebuilds_first() -> None:
    """A member dies when it has come, so it calls `rebuild`, and loads its state then. All were refused."""
    chaos, shelf = Chaos(), Shelf()

    async def train(pg: ProcessGroup, joins: bool) -> tuple[int, int, list[bytes]]:
        mine = fresh()
        if joins:
            chaos.crash(1)
            pg = await pg.rebuild()
        optimizer = ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=1)
        if joins:
            optimizer.load_state_dict({**shelf.saved(), "steps": 1})
        await optimizer
        while optimizer.steps < STEPS:
            if optimizer.steps == 2 and optimizer.pg.size == 2 and not joins:
                if optimizer.pg.rank not in shelf.parts:
                    await shelf.save(optimizer)
                if optimizer.pg.rank == 0 and not chaos.joined:
                    chaos.join(lambda newcomers: train(newcomers, True), 30.0)
                await asyncio.sleep(2)  # virtual: it waits by then
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        return optimizer.steps, optimizer.pg.size, [one.tobytes() for one in mine]

    results: list[Any] = run_virtual(run_cluster(2, lambda pg: train(pg, False), processes=chaos))
    assert isinstance(results[1], Crashed)
    assert results[0] == chaos.joined[0].result() == (STEPS, 2, without_deaths())
