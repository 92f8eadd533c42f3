"""Steps that nobody awaits, and two at once: the next call says so."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.ddp import DiLoCo, GradientSync, ShardedOptimizer
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster


def momentum(values: Any, gradient: Any, state: dict[str, Any]) -> None:
    values -= gradient


@pytest.mark.parametrize("kind", ["sharded", "diloco"])
def test_a_step_that_was_not_awaited_is_told_by_the_next(kind: str) -> None:
    async def part(pg: ProcessGroup) -> int:
        weights = [np.full(5, 1.0, np.float32)]
        trains: Any = ShardedOptimizer(pg, weights, momentum) if kind == "sharded" else DiLoCo(pg, weights)
        await trains
        more = [[np.ones(5, np.float32)]] if kind == "sharded" else []
        await trains.step(*more)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python's own would be the second one
            trains.step(*more)
            with pytest.raises(UsageError, match=r"step\(\) before this one was never awaited"):
                await trains.step(*more)
        await trains.step(*more)
        assert trains.steps == 2
        return 1

    assert run_virtual(run_cluster(2, part)) == [1, 1]


@pytest.mark.parametrize("kind", ["sharded", "diloco", "sync"])
def test_of_two_steps_at_once_the_second_is_refused(kind: str) -> None:
    """It is no step; and the first one is as it would be alone."""

    async def part(pg: ProcessGroup) -> list[float]:
        weights = [np.arange(5, dtype=np.float32)]
        gradient = [np.full(5, 1.0 + pg.rank, np.float32)]
        trains: Any
        call: Any
        if kind == "sharded":
            trains = await ShardedOptimizer(pg, weights, momentum)
            call = partial(trains.step, gradient)
        elif kind == "diloco":
            trains = await DiLoCo(pg, weights, sync_every=1, outer_lr=1.0, outer_momentum=0.0)
            weights[0] -= gradient[0]
            call = trains.step
        else:
            trains = await GradientSync(pg, weights)
            trains.ready(0, gradient[0])
            call = trains.finish

        async def steps() -> Any:
            return await call()

        first, second = [*await asyncio.gather(steps(), steps(), return_exceptions=True)]
        assert isinstance(second, UsageError) and not isinstance(first, BaseException), (first, second)
        if kind == "sync":
            weights[0] -= first[0]
        else:
            assert trains.steps == 1
        return weights[0].tolist()

    assert run_virtual(run_cluster(2, part)) == [[-1.5, -0.5, 0.5, 1.5, 2.5]] * 2


def test_nothing_else_begins_beside_an_exchange() -> None:
    async def part(pg: ProcessGroup) -> None:
        diloco = DiLoCo(pg, [np.full(3, 1.0 + pg.rank)], sync_every=1)
        first, second = await asyncio.gather(diloco.synced(), diloco.synced(), return_exceptions=True)
        assert first is None and isinstance(second, UsageError)
        saved = diloco.state_dict()
        step = asyncio.ensure_future(diloco.step())
        await asyncio.sleep(0)
        for call in (diloco.state_dict, lambda: diloco.load_state_dict(saved)):
            with pytest.raises(UsageError, match="a step, or an await of it, is under way"):
                call()
        assert len(await step) == 1 and diloco.exchanges == 1

    run_virtual(run_cluster(2, part))
