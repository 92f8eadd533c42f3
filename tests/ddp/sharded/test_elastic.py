"""ShardedOptimizer where members die: with copies, all is as in a run without deaths, exactly."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.ddp import ShardedOptimizer
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.ddp.sharded.rules import adam
from tests.helpers import core_of
from tests.levels import COSTLY, MORE, few

STEPS, ITEMS = 12, 60
SHAPES: list[tuple[tuple[int, ...], Any]] = [((7, 3), np.float32), ((5,), np.float64), ((2, 2), np.float32)]


def fresh(rank: int = 0) -> list[np.ndarray]:
    return [np.full(shape, 1.0 + rank, dtype) for shape, dtype in SHAPES]


def gradients(step: int, rank: int, size: int) -> list[np.ndarray]:
    """A rank's share of a step's items; whole numbers, so that averages are the same for any size."""
    mine = sum(1 + number + step for number in range(ITEMS) if number % size == rank) * size
    return [
        np.array(np.full(shape, mine) + size * (rank == 0) * np.arange(np.prod(shape)).reshape(shape), dtype)
        for shape, dtype in SHAPES
    ]


def without_deaths(steps: int = STEPS) -> list[bytes]:
    values = fresh()
    states: list[dict[str, Any]] = [{} for _ in values]
    for step in range(steps):
        for one, gradient, state in zip(values, gradients(step, 0, 1), states, strict=True):
            adam(one, gradient, state)
    return [one.tobytes() for one in values]


Deaths = tuple[tuple[int, int, str], ...]


async def train(pg: ProcessGroup, dies: Deaths, **more: Any) -> ShardedOptimizer:
    """Train; ranks of the first epoch kill themselves at (step, rank, where)."""
    me, counter = pg.rank, np.full(2, pg.rank)
    mine = fresh(pg.rank)
    optimizer = await ShardedOptimizer(pg, mine, adam, elastic=True, state=[counter], **more)
    gather = optimizer._model.gather

    async def gathers(pg: ProcessGroup, shares: Any) -> None:
        if (optimizer.steps - 1, me, "between") in dies:  # its update is done, and nobody has its values
            os.kill(os.getpid(), signal.SIGKILL)
        await gather(pg, shares)
        if (optimizer.steps - 1, me, "late") in dies:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer._model.gather = gathers  # type: ignore[method-assign]
    while optimizer.steps < STEPS:
        now = optimizer.steps
        if (now, me, "before") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if (now, me, "within") in dies:
            core_of(pg).loop.call_soon(os.kill, os.getpid(), signal.SIGKILL)
        counted = bool(await optimizer.step(gradients(now, optimizer.pg.rank, optimizer.pg.size)))
        assert optimizer.steps == now + counted
        if (now, me, "after") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
    assert [one.tobytes() for one in mine] == without_deaths()
    assert (counter == 0).all()
    return optimizer


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("where", "whole"),
    few(
        [(where, whole) for where in ("before", "within", "between", "late", "after") for whole in (0, 1)],
        [("between", 0), ("within", 1)],
    ),
)
@spmd(world_size=4, exits={2: -9})
async def test_a_death_changes_nothing_where_another_rank_has_a_copy(
    pg: ProcessGroup, where: str, whole: int
) -> None:
    optimizer = await train(pg, ((5, 2, where),), redundancy=1, whole=bool(whole))
    assert (optimizer.pg.size, optimizer.pg.epoch) == (3, 1)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("where", few(["between", "late"], ["between"]))
@spmd(world_size=4, exits={2: -9})
async def test_all_members_leave_a_step_together(pg: ProcessGroup, where: str) -> None:
    """So a program may communicate between two steps, whoever dies in one."""
    me, mine = pg.rank, fresh()
    optimizer = await ShardedOptimizer(pg, mine, adam, elastic=True, redundancy=1)
    gather = optimizer._model.gather

    async def gathers(pg: ProcessGroup, shares: Any) -> None:
        if me == 2 and optimizer.steps == 5 and where == "between":
            os.kill(os.getpid(), signal.SIGKILL)
        await gather(pg, shares)
        if me == 2 and optimizer.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer._model.gather = gathers  # type: ignore[method-assign]
    while optimizer.steps < STEPS:
        now = optimizer.steps
        counted = await optimizer.step(gradients(now, optimizer.pg.rank, optimizer.pg.size))
        told = await optimizer.pg.all_gather(np.array([optimizer.steps, len(counted)]))
        assert (told == [now + 1, 3]).all()
    assert optimizer.pg.size == 3 and [one.tobytes() for one in mine] == without_deaths()


@pytest.mark.slow(MORE)
@spmd(world_size=4, exits={0: -9, 1: -9, 3: -9})
async def test_three_of_four_die_in_turn(pg: ProcessGroup) -> None:
    optimizer = await train(pg, ((2, 0, "between"), (5, 1, "before"), (8, 3, "late")), redundancy=1)
    assert optimizer.pg.size == 1


@pytest.mark.slow(COSTLY)
@spmd(world_size=4, exits={1: -9, 2: -9})
async def test_two_copies_survive_two_neighbours_at_once(pg: ProcessGroup) -> None:
    optimizer = await train(pg, ((4, 1, "between"), (4, 2, "between")), redundancy=2, max_norm=1e9)
    assert optimizer.pg.size == 2


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={1: -9})
async def test_without_a_copy_all_survivors_are_told_of_the_loss(pg: ProcessGroup) -> None:
    with pytest.raises(
        dist.StateLost, match=r"state of \d+ elements died.*redundancy=1 prevents it"
    ) as caught:
        await train(pg, ((5, 1, "between"),))
    assert isinstance(caught.value, dist.CheckpointError)
    if pg.rank != 1:
        assert core_of(pg).lineage.latest.owner.size == 2


@spmd(world_size=3, exits={1: -9})
async def test_a_cancelled_step_whose_state_died_does_not_count(pg: ProcessGroup) -> None:
    values = np.zeros(30)
    begun: list[asyncio.Future[Any]] = []

    def update(value: Any, gradient: Any, state: dict[str, Any]) -> None:
        state.setdefault("velocity", np.zeros_like(value))
        if optimizer.steps == 1 and pg.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if optimizer.steps == 1:
            begun[0].cancel()
        value -= gradient

    optimizer = await ShardedOptimizer(pg, [values], update, elastic=True)
    await optimizer.step([np.ones(30)])
    begun.append(asyncio.ensure_future(optimizer.step([np.ones(30)])))
    with pytest.raises((asyncio.CancelledError, dist.StateLost)):
        await begun[0]
    assert optimizer.steps == 1 and (values == -1).all()
    for call in (lambda: optimizer.step([np.ones(30)]), optimizer.synced):
        with pytest.raises(dist.StateLost, match=r"state of \d+ elements died"):
            await call()
    assert optimizer.steps == 1


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={1: -9})
async def test_restore_is_asked_for_what_was_lost(pg: ProcessGroup) -> None:
    asked = []

    async def restore(optimizer: ShardedOptimizer) -> None:
        """Each rank works out what it needs by itself."""
        asked.append(optimizer.pg.size)
        if len(asked) == 1:
            return  # there is nothing at the beginning
        again = np.ones(1)
        await optimizer.pg.all_reduce(again)  # all members are here
        assert again == 2
        values = fresh()
        states: list[dict[str, Any]] = [{} for _ in values]
        for step in range(2):
            for one, gradient, state in zip(values, gradients(step, 0, 1), states, strict=True):
                adam(one, gradient, state)
        saved: dict[str, Any] = {
            "optimizer": "adam",
            "steps": 2,
            "options": [],
            "shapes": [[one.dtype.name, *one.shape] for one in values],
            "arrays": {
                str(index): {
                    "values": dist.ddp.checkpoint.parts.Parts(one.dtype, (one.size,), [(0, one.reshape(-1))]),
                    "whole": {},
                    "scalar": {"count": ["", "plain", state["count"]]},
                    "elements": {
                        name: dist.ddp.checkpoint.parts.Parts(
                            one.dtype, (one.size,), [(0, state[name].reshape(-1))]
                        )
                        for name in ("mean", "square")
                    },
                }
                for index, (one, state) in enumerate(zip(values, states, strict=True))
            },
        }
        optimizer.load_state_dict(saved)

    me = pg.rank
    optimizer = await ShardedOptimizer(pg, mine := fresh(), adam, elastic=True, restore=restore)
    died = False
    while optimizer.steps < STEPS:
        if (optimizer.steps, me, died) == (5, 1, False):
            os.kill(os.getpid(), signal.SIGKILL)
        before = optimizer.steps
        if not await optimizer.step(gradients(before, optimizer.pg.rank, optimizer.pg.size)):
            assert optimizer.steps == 2 and not died
            died = True
    assert [one.tobytes() for one in mine] == without_deaths()
    assert asked == [3, 2] and died


@spmd(world_size=2, exits={1: -9})
async def test_without_elastic_a_death_is_an_error(pg: ProcessGroup) -> None:
    optimizer = await ShardedOptimizer(pg, fresh(), adam)
    if pg.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        await optimizer.step(gradients(0, 0, 1))


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_elastic_is_for_a_world(pg: ProcessGroup) -> None:
    half = await pg.split(0)
    assert half is not None
    with pytest.raises(dist.UsageError, match="is not the world"):
        ShardedOptimizer(half, fresh(), adam, elastic=True)


@pytest.mark.slow(COSTLY)
@spmd(world_size=4, exits={0: -9, 2: -9})
async def test_a_torch_optimizer_goes_on(pg: ProcessGroup) -> None:
    torch: Any = pytest.importorskip("torch")

    def fill(parameters: list[Any], step: int, rank: int, size: int) -> None:
        for p in parameters:
            mine = sum(1 + number + step for number in range(ITEMS) if number % size == rank) * size
            p.grad = torch.full_like(p, float(mine))

    def fresh() -> list[Any]:
        return [torch.nn.Parameter(torch.arange(float(count)) / 4) for count in (11, 3, 8)]

    plain = fresh()
    reference = torch.optim.AdamW(plain, lr=0.1)
    for step in range(STEPS):
        fill(plain, step, 0, 1)
        reference.step()
    mine, me = fresh(), pg.rank
    optimizer = await ShardedOptimizer(pg, mine, torch.optim.AdamW, lr=0.1, elastic=True, redundancy=1)
    while optimizer.steps < STEPS:
        if (optimizer.steps, me) in ((4, 0), (8, 2)):
            optimizer._model.gather = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
        fill(mine, optimizer.steps, optimizer.pg.rank, optimizer.pg.size)
        await optimizer.step()
    assert optimizer.pg.size == 2
    for p, wanted in zip(mine, plain, strict=True):
        assert p.detach().numpy().tobytes() == wanted.detach().numpy().tobytes()
