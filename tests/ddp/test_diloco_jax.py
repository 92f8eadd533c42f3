"""DiLoCo and local SGD on JAX's arrays, which cannot be written: against the same training on NumPy's."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiodist.ddp import DiLoCo, LocalSGD
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster

jax = pytest.importorskip("jax", reason="JAX's arrays")

STEPS = 12
SHAPES = ((5, 3), (3,))


def task(rank: int) -> tuple[Any, Any]:
    """Inputs and targets of a rank: distinct, and not linear in each other."""
    random = np.random.default_rng([9, rank])
    inputs = random.standard_normal((16, 5)).astype(np.float32)
    return inputs, np.tanh(inputs[:, :3]) + np.float32(rank)


def beginning(rank: int) -> list[Any]:
    random = np.random.default_rng(rank)
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def loss(weights: Any, inputs: Any, targets: Any) -> Any:
    return jax.numpy.square(jax.numpy.tanh(inputs @ weights[0] + weights[1]) - targets).mean()


slopes = jax.jit(jax.grad(loss))


async def with_jax(pg: ProcessGroup, kind: Any, options: dict[str, Any], dtype: Any) -> list[Any]:
    """Train as a program with JAX does: values are passed, and new ones come back."""
    inputs, targets = task(pg.rank)
    diloco = await kind(pg, [jax.numpy.asarray(one, dtype) for one in beginning(pg.rank)], **options)
    weights = diloco.arrays
    for _ in range(STEPS):
        found = slopes(weights, inputs, targets)
        weights = [one - 0.1 * slope for one, slope in zip(weights, found, strict=True)]
        weights = await diloco.step(weights)
        assert all(isinstance(one, jax.Array) and one.dtype == dtype for one in weights)
        assert [one.shape for one in weights] == [*SHAPES]
    assert all(now is one for now, one in zip(diloco.arrays, weights, strict=True))
    return [np.asarray(one).copy() for one in weights]


async def with_numpy(pg: ProcessGroup, kind: Any, options: dict[str, Any], dtype: Any) -> list[Any]:
    """The same, on arrays that are written in place."""
    inputs, targets = task(pg.rank)
    weights = [np.asarray(jax.numpy.asarray(one, dtype)).copy() for one in beginning(pg.rank)]
    diloco = await kind(pg, weights, **options)
    for _ in range(STEPS):
        given = [jax.numpy.asarray(one) for one in weights]
        for one, before, slope in zip(weights, given, slopes(given, inputs, targets), strict=True):
            one[...] = np.asarray(before - 0.1 * slope)
        await diloco.step()
    return weights


@pytest.mark.parametrize("dtype", [np.float32, jax.numpy.bfloat16])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DiLoCo, {"sync_every": 4}),
        (DiLoCo, {"sync_every": 6, "fragments": 2, "delay": 2, "mix": 0.5, "codec": "int4"}),
        (LocalSGD, {"sync_every": 2, "codec": "int8"}),
    ],
)
def test_the_values_are_those_of_a_training_on_numpy(kind: Any, options: dict[str, Any], dtype: Any) -> None:
    dtype = np.dtype(dtype)
    results = run_virtual(run_cluster(3, lambda pg: with_jax(pg, kind, options, dtype)))
    plain = run_virtual(run_cluster(3, lambda pg: with_numpy(pg, kind, options, dtype)))
    for got, wanted in zip(results, plain, strict=True):
        for one, other in zip(got, wanted, strict=True):
            assert one.tobytes() == other.tobytes()
    if not options.get("delay"):
        assert len({result[0].tobytes() for result in results}) == 1


def test_all_begin_with_rank_0s_values() -> None:
    async def part(pg: ProcessGroup) -> list[Any]:
        mine = [jax.numpy.asarray(one) for one in beginning(pg.rank)]
        diloco = await DiLoCo(pg, mine)
        return [np.asarray(one) for one in diloco.arrays]

    for result in run_virtual(run_cluster(2, part)):
        for one, first in zip(result, beginning(0), strict=True):
            assert np.array_equal(one, first)


async def test_long_steps_in_a_thread() -> None:
    """As the documentation says for steps that take long: the loop goes on meanwhile."""

    async def part(pg: ProcessGroup) -> Any:
        inputs, targets = task(pg.rank)
        diloco = await DiLoCo(
            pg, [jax.numpy.asarray(one) for one in beginning(pg.rank)], sync_every=2, delay=1
        )
        weights = diloco.arrays

        def train(weights: Any) -> Any:
            found = slopes(weights, inputs, targets)
            return [one - 0.1 * slope for one, slope in zip(weights, found, strict=True)]

        for _ in range(5):
            weights = await diloco.step(await asyncio.to_thread(train, weights))
        return np.asarray(weights[0])

    first, second = await run_cluster(2, part)
    assert first.tobytes() == second.tobytes()
