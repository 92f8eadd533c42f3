"""Steps that nobody awaits: the next call says so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.ddp import DiLoCo, ShardedOptimizer
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
