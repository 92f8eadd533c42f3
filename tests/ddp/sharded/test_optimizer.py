"""ShardedOptimizer: against torch's own optimisers and plain rules on one copy, bit by bit."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import NonFiniteValues, UsageError
from aiodist.ddp import ShardedOptimizer
from aiodist.ddp.outer import Outer
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.ddp.sharded.rules import adam
from tests.levels import few

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((4, 3), np.float32),
    ((), np.float32),
    ((7,), np.float64),
    ((5, 1, 2), np.float32),
    ((0,), np.float32),
    ((9,), np.float16),
]
STEPS = 5


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return run_virtual(run_cluster(size, part))


def weights(rank: int = 0) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [np.array(rng.standard_normal(shape), dtype) for shape, dtype in SHAPES]


def gradient(step: int, index: int, rank: int) -> Any:
    """Eighths, so that sums and, for 2 and 4 ranks, averages are exact; distinct per rank and element."""
    shape, dtype = SHAPES[index]
    count = int(np.prod(shape, dtype=int))
    values = (np.arange(count) % 5 - 2 + rank + 3 * step % 7 - index) / 8
    return np.array(values.reshape(shape), dtype)


def average(step: int, index: int, size: int) -> Any:
    dtype = SHAPES[index][1]
    total = sum(gradient(step, index, rank).astype(np.float64) for rank in range(size))
    return np.array(total / size, dtype)


def alone(size: int, rule: Any, steps: int = STEPS) -> list[Any]:
    """The values that one copy has that gets the averages."""
    values: list[Any] = weights()
    states: list[dict[str, Any]] = [{} for _ in values]
    for step in range(steps):
        for index, one in enumerate(values):
            flat = one.reshape(-1)
            rule(flat, average(step, index, size).reshape(-1), states[index])
            values[index] = flat.reshape(one.shape)
    return values


MORE_OF_IT: list[dict[str, Any]] = [{}, {"redundancy": 1}, {"redundancy": 20}, {"whole": True}]
ALL = list(product([1, 2, 4, 9], MORE_OF_IT, [adam, Outer()]))


@pytest.mark.parametrize(
    ("size", "more", "rule"), few(ALL, [row for row in ALL if row[0] < 9 or row[1:] == ({}, adam)])
)
def test_a_rule_gives_what_one_copy_gives(size: int, more: dict[str, Any], rule: Any) -> None:
    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = weights(pg.rank)
        optimizer = await ShardedOptimizer(pg, mine, rule, bucket_cap_mb=40 / 2**20, **more)
        for own, first in zip(mine, weights(0), strict=True):
            assert own.tobytes() == first.tobytes()
        for step in range(STEPS):
            grads = [gradient(step, index, pg.rank) for index in range(len(mine))]
            if step % 2:  # some of them early, out of order
                for index in (3, 0):
                    optimizer.ready(index, grads[index])
            given = [None if step % 2 and index in (0, 3) else one for index, one in enumerate(grads)]
            got = await optimizer.step(given)
            assert got[2] is mine[2]
        assert optimizer.steps == STEPS
        return [one.tobytes() for one in mine]

    results = on_all(size, part)
    assert all(one == results[0] for one in results)
    if size != 9:  # the average of 9 is rounded
        assert results[0] == [one.tobytes() for one in alone(size, rule)]


def test_values_that_cannot_be_written_come_back_as_new_ones() -> None:
    async def part(pg: ProcessGroup) -> Any:
        values = weights(pg.rank)
        for one in values:
            one.flags.writeable = False
        optimizer = await ShardedOptimizer(pg, values, adam)
        for step in range(STEPS):
            values = await optimizer.step([gradient(step, i, pg.rank) for i in range(len(values))])
        return [one.tobytes() for one in values]

    first, second = on_all(2, part)
    assert first == second == [one.tobytes() for one in alone(2, adam)]


def test_jax_arrays() -> None:
    jax = pytest.importorskip("jax")

    async def part(pg: ProcessGroup) -> Any:
        values = [jax.numpy.array(one) for one in weights(pg.rank)]
        optimizer = await ShardedOptimizer(pg, values, adam, redundancy=1)
        for step in range(STEPS):
            grads = [gradient(step, i, pg.rank).astype(one.dtype) for i, one in enumerate(values)]
            values = await optimizer.step([jax.numpy.array(one) for one in grads])
            assert all(isinstance(one, jax.Array) for one in values)
        return [np.asarray(one).tobytes() for one in values if one.dtype != np.float64]

    first, second = on_all(2, part)
    wanted = [
        one.tobytes() for one, (_, dtype) in zip(alone(2, adam), SHAPES, strict=True) if dtype != np.float64
    ]
    assert first == second and set(wanted) <= set(first)  # of float64 JAX makes float32


def test_each_rank_keeps_its_share_of_the_state_only() -> None:
    async def part(pg: ProcessGroup) -> int:
        mine = [np.zeros((10, 10), np.float32), np.zeros(21)]
        optimizer = await ShardedOptimizer(pg, mine, adam)
        await optimizer.step([np.ones((10, 10), np.float32), np.ones(21)])
        return sum(one.state["mean"].size for one in optimizer._shares.pieces)

    assert on_all(4, part) == [25 + 6, 25 + 6, 25 + 6, 25 + 3]


def test_values_that_the_program_changes_between_steps_count() -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine = [np.zeros(5)]
        optimizer = await ShardedOptimizer(pg, mine, Outer(1.0, 0.0))
        await optimizer.step([np.arange(5.0)])
        mine[0] += 100
        await optimizer.step([np.arange(5.0)])
        return mine[0].tolist()

    assert on_all(2, part) == [[100, 98, 96, 94, 92]] * 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_scaled_to_the_limit_of_their_norm(size: int) -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine: list[Any] = [np.zeros(3), np.zeros(4, np.float32)]
        optimizer = await ShardedOptimizer(pg, mine, Outer(1.0, 0.0), max_norm=1.0, redundancy=1)
        gradients = [np.full(3, 3.0), np.full(4, -6.0, np.float32)]
        await optimizer.step(gradients)
        norm = (3 * 9 + 4 * 36) ** 0.5
        assert optimizer.norm == norm
        assert np.allclose(mine[0], -3 / norm, rtol=1e-6) and np.allclose(mine[1], 6 / norm, rtol=1e-6)
        before = [one.copy() for one in mine]
        if pg.rank == 0:
            gradients[1][3] = np.nan
        with pytest.raises(NonFiniteValues, match="the norm of all gradients is nan"):
            await optimizer.step(gradients)
        assert optimizer.steps == 1
        for one, was in zip(mine, before, strict=True):
            assert (one == was).all()
        gradients[1][3] = 0
        await optimizer.step([one / 10 for one in gradients])
        return [one.tobytes() for one in mine]

    results = on_all(size, part)
    assert all(one == results[0] for one in results)


def test_other_plans_are_refused_on_all_ranks_before_anything_is_sent() -> None:
    async def part(pg: ProcessGroup) -> None:
        with pytest.raises(UsageError, match="has other arrays, or another plan, than rank"):
            await ShardedOptimizer(pg, [np.zeros(3 + pg.rank)], adam)
        mine = [np.full(3, 5.0)]
        with pytest.raises(UsageError, match="has other arrays, or another plan, than rank"):
            await ShardedOptimizer(pg, mine, adam, redundancy=pg.rank)
        assert mine[0].tolist() == [5, 5, 5]

    on_all(2, part)


def test_what_has_no_meaning_is_refused() -> None:
    async def part(pg: ProcessGroup) -> None:
        for arrays, rule, more, match in [
            (np.zeros(3), adam, {}, r"single array. Pass a list: ShardedOptimizer\(pg, \["),
            ([], adam, {}, "no parameter to train"),
            ([np.zeros(3, np.int32)], adam, {}, "int32: pass real floating arrays"),
            (
                [np.zeros(3)],
                "adam",
                {},
                "must be a class of torch.optim, with torch parameters, or a function",
            ),
            ([np.zeros(3)], dict, {}, "must be a class of torch.optim"),
            ([np.zeros(3)], adam, {"lr": 0.1}, "a function has no option 'lr'"),
            ([np.zeros(3)], adam, {"redundancy": -1}, "redundancy must be at least 0"),
            ([np.zeros(3)], adam, {"max_norm": "big"}, "max_norm must be a number"),
            ([np.zeros(3)], adam, {"bucket_cap_mb": 0}, "bucket_cap_mb must be"),
            ([{"lr": 3}], adam, {}, "a parameter group must be a dict with 'params'"),
        ]:
            with pytest.raises(UsageError, match=match):
                ShardedOptimizer(pg, arrays, rule, **more)  # type: ignore[arg-type]
        unready = ShardedOptimizer(pg, [np.zeros(3), np.zeros(2)], adam)
        with pytest.raises(UsageError, match="may not have the common values"):
            await unready.step([np.zeros(3), np.zeros(2)])
        assert await unready is unready
        issued = pg.issued_count()
        with pytest.raises(UsageError, match="1 gradients for 2 arrays"):
            await unready.step([np.zeros(3)])
        with pytest.raises(UsageError, match=r"1 of 2 gradients are missing: 1\. Give zeros"):
            await unready.step([np.zeros(3), None])
        with pytest.raises(UsageError, match=r"gradient 1 is float64\[3\], its array is float64\[2\]"):
            await unready.step([np.zeros(3), np.zeros(3)])
        with pytest.raises(UsageError, match="index 2 names no array"):
            unready.ready(2, np.zeros(3))
        assert pg.issued_count() == issued
        unready.ready(1, np.zeros(2))
        with pytest.raises(UsageError, match="gradient 1 is ready for the second time"):
            unready.ready(1, np.zeros(2))
        await unready.step([np.zeros(3), None])

    on_all(2, part)


def test_state_that_cannot_be_divided_is_refused() -> None:
    def total(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        state["rows"] = np.zeros(3)

    def texts(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        state["name"] = "x"

    async def part(pg: ProcessGroup) -> None:
        optimizer = await ShardedOptimizer(pg, [np.zeros((4, 2))], total)
        with pytest.raises(UsageError, match=r"state 'rows' has the shape \[3\].*Pass whole=True"):
            await optimizer.step([np.ones((4, 2))])
        optimizer = await ShardedOptimizer(pg, [np.zeros((4, 2)), np.zeros((4, 2))], texts)
        with pytest.raises(UsageError, match="state 'name' is 'x': keep numbers and arrays there"):
            await optimizer.step([np.ones((4, 2))] * 2)

    on_all(2, part)


def test_what_a_rule_raises_is_raised() -> None:
    async def part(pg: ProcessGroup) -> None:
        optimizer = await ShardedOptimizer(pg, [np.zeros(4)], lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await optimizer.step([np.ones(4)])

    on_all(2, part)


def test_arrays_that_share_memory_are_refused() -> None:
    async def part(pg: ProcessGroup) -> None:
        weights, other = np.ones((4, 6), np.float32), np.ones(5)
        cases: list[tuple[list[Any], str]] = [
            ([weights, other, weights], r"parameters\[0\] and parameters\[2\]"),
            ([weights[:3], weights[2:]], r"parameters\[0\] and parameters\[1\]"),
            ([other, weights[:, ::2], weights[::-1, 1:3]], r"parameters\[1\] and parameters\[2\]"),
            ([weights, weights.reshape(-1)[5:7]], r"parameters\[0\] and parameters\[1\]"),
        ]
        for given, names in cases:
            with pytest.raises(UsageError, match=f"{names} share memory"):
                ShardedOptimizer(pg, given, adam)
        with pytest.raises(UsageError, match=r"parameters\[0\] and state\[0\] share memory"):
            ShardedOptimizer(pg, [weights, other], adam, state=[weights[1]])
        apart = [weights[:, ::2], weights[:, 1::2], other[:2], other[2:], other[:0], other[1:1]]
        await ShardedOptimizer(pg, apart, adam)

    on_all(2, part)


def test_nothing_else_uses_the_state_while_a_step_changes_it() -> None:
    """It would be saved, or written, in parts; a gradient would lie where values travel."""

    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = [np.ones(3)]
        optimizer = await ShardedOptimizer(pg, mine, adam)
        saved = copy.deepcopy(optimizer.state_dict())
        step = asyncio.ensure_future(optimizer.step([np.full(3, 2.0)]))
        await asyncio.sleep(0)
        for call in (
            optimizer.state_dict,
            lambda: optimizer.load_state_dict(saved),
            lambda: optimizer.ready(0, np.ones(3)),
        ):
            with pytest.raises(UsageError, match="a step, or an await of the optimizer, is under way"):
                call()
        with pytest.raises(UsageError, match=r"under way.* Begin the next one after it"):
            await optimizer.step([np.full(3, 2.0)])
        await step
        assert optimizer.steps == 1 and optimizer.state_dict()["steps"] == 1
        return [one.tobytes() for one in mine]

    first, second = on_all(2, part)
    assert first == second != [np.ones(3).tobytes()]
