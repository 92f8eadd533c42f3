"""DiLoCo in simulated time: a member dies at any moment, a newcomer comes at any, and the program itself
communicates between steps."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import PeerLost
from aiodist.ddp import DiLoCo, LocalSGD
from aiodist.ddp.outer import Common, Outer
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.levels import MORE, few
from tests.support.chaos import Chaos, Crashed

STEPS, EVERY = 24, 4
COUNTS = (7, 1, 12)

Plan = dict[str, Any]


def plan_of(drawn: random.Random) -> Plan:
    """Arguments of a run. Rates are powers of 2, so that all averages are exact for any size."""
    if drawn.random() < 0.25:
        return {"kind": LocalSGD, "admit": drawn.random() < 0.5}
    fragments = drawn.choice((1, 1, 2))
    delay = drawn.randrange(EVERY // fragments)
    return {
        "kind": DiLoCo,
        "fragments": fragments,
        "delay": delay,
        "codec": drawn.choice((None, None, None, "int8")),
        "outer_lr": 0.25,
        "outer_momentum": 0.5,
    }


async def train(pg: ProcessGroup, plan: Plan) -> tuple[int, list[bytes]]:
    """Train, and communicate before each step, as one that saves checkpoints does → steps and values."""
    own = [np.zeros(count) for count in COUNTS]
    more = {name: value for name, value in plan.items() if name != "kind"}
    diloco = await plan["kind"](pg, own, sync_every=EVERY, elastic=True, **more)
    while diloco.steps < STEPS:
        mine = [diloco.steps, diloco.exchanges, diloco.pg.epoch]
        with contextlib.suppress(PeerLost):  # the next exchange goes on without it
            assert (await diloco.pg.all_gather(np.array(mine)) == mine).all()
        await asyncio.sleep(0.001)
        for count, one in zip(COUNTS, own, strict=True):
            one += (np.arange(count) % 7 + diloco.steps) * 4
        await diloco.step()
        if not plan.get("admit", True) and diloco.steps % EVERY == 0:
            await diloco.admit()
    assert diloco.repairs == 0
    return diloco.steps, [one.values.tobytes() for one in diloco._commons]


@pytest.mark.parametrize("seed", few(range(200), [1, 8, 27, 53], MORE))
def test_all_members_leave_a_step_together(seed: int) -> None:
    drawn = random.Random(seed)
    plan = plan_of(drawn)
    size, comes = drawn.randint(2, 5), drawn.choice((None, drawn.uniform(0, 0.03)))
    victim, step, dies = drawn.randrange(size), drawn.randint(1, 120), drawn.uniform(0, 0.05)
    chaos = Chaos(seed)

    async def main(pg: ProcessGroup) -> tuple[int, list[bytes]]:
        loop = asyncio.get_running_loop()
        if pg.rank == victim:
            loop.call_later(dies, lambda: chaos.crash_at_step(victim, chaos.processes[victim].steps + step))
        if pg.rank == 0 and comes is not None:
            loop.call_later(comes, chaos.join, lambda pg: train(pg, plan), 30.0)
        return await train(pg, plan)

    results: list[Any] = run_virtual(run_cluster(size, main, processes=chaos))
    results += [newcomer.result() for newcomer in chaos.joined]
    found = [result for result in results if not isinstance(result, Crashed)]
    assert len(found) >= size - 1 + (comes is not None)
    # A newcomer has moved less in fragments that others have trained since their exchange.
    exact = plan.get("codec") is None and (comes is None or plan.get("fragments", 1) == 1)
    wanted = run_virtual(run_cluster(1, lambda pg: train(pg, plan)))[0] if exact else found[0]
    assert all(result == wanted for result in found)


def state_after(exchanges: int) -> dict[str, Any]:
    """What a rank may have saved after so many exchanges."""
    values = [np.full(count, float(exchanges * 10 + at)) for at, count in enumerate(LARGE)]
    more = {"values": values, "velocity": [one / 7 for one in values], "feedback": None}
    return {"steps": 2 * exchanges, "exchanges": exchanges, **more}


LARGE = (40_000, 30_000)  # what is sent of them takes several turns


@pytest.mark.parametrize("step", few(range(1, 70), range(20, 50, 3), MORE))
def test_values_of_a_member_that_dies_while_it_gives_them_are_taken_whole_or_not(step: int) -> None:
    """Ranks 0 and 1 had an older state, and get rank 2's. Half of it was mixed with theirs, on each in its
    own way, and they went on with that."""
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> tuple[int, list[bytes]]:
        await asyncio.sleep(0.05)  # virtual: all members are there
        own = [np.zeros(count) for count in LARGE]
        diloco = DiLoCo(pg, own, sync_every=2, fragments=[[0], [1]], elastic=True)
        diloco.load_state_dict(state_after(6 if pg.rank == 2 else 5))
        for one, values in zip(own, diloco._commons, strict=True):
            one[:] = values.values  # nobody has moved
        if pg.rank == 2:
            chaos.crash_at_step(2, chaos.processes[2].steps + step)
        await diloco.step()
        return diloco.exchanges, [array.tobytes() for one in diloco._commons for array in _arrays(one)]

    def after(exchanges: int) -> tuple[int, list[bytes]]:
        rule, saved = Outer(), state_after(exchanges - 1)
        for at, values in enumerate(saved["values"][:1]):
            rule(values, np.zeros_like(values), {"velocity": saved["velocity"][at]})
        pairs = zip(saved["values"], saved["velocity"], strict=True)
        return exchanges, [array.tobytes() for pair in pairs for array in pair]

    results: list[Any] = run_virtual(run_cluster(3, main, processes=chaos))
    assert results[0] == results[1] and results[0] in (after(6), after(7))


def _arrays(common: Common) -> tuple[np.ndarray, np.ndarray]:
    return common.values, common.velocity


def with_a_newcomer(loaded: dict[str, Any] | None) -> list[tuple[int, list[bytes], int]]:
    """Train with a newcomer that loads something before it meets the members → what each member has."""
    chaos = Chaos()

    async def part(pg: ProcessGroup, joins: bool) -> tuple[int, list[bytes], int]:
        own = [np.zeros(count) for count in LARGE]
        diloco = DiLoCo(pg, own, sync_every=2, fragments=[[0], [1]], elastic=True)
        if joins and loaded is not None:
            diloco.load_state_dict(loaded)
        await diloco
        while diloco.steps < STEPS:
            if diloco.steps == 3 and not joins:
                if diloco.pg.rank == 0:
                    chaos.join(lambda newcomers: part(newcomers, True), 30.0)
                await asyncio.sleep(1)  # virtual: it waits by then
            for at, one in enumerate(own):
                one += diloco.steps + at + diloco.pg.rank / 8
            await diloco.step()
        assert diloco.pg.size == 3
        commons = [array.tobytes() for one in diloco._commons for array in _arrays(one)]
        return diloco.exchanges, commons, diloco.repairs

    results = run_virtual(run_cluster(2, lambda pg: part(pg, False), processes=chaos))
    return [*results, chaos.joined[0].result()]


@pytest.mark.parametrize("exchanges", few([1, 9], [1]))
def test_what_a_newcomer_has_loaded_itself_counts_for_nothing(exchanges: int) -> None:
    """It took no part in the meeting that the others waited for, and all ended with CollectiveMismatch."""
    found = with_a_newcomer(state_after(exchanges))
    assert found == with_a_newcomer(None)
    assert found[0] == found[1] == found[2] and found[0][0] == STEPS and found[0][2] == 0
