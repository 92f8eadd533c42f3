"""all_reduce with 8 or 4 bits an element: how far from exact, equal bits, feedback, agreement, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiodist as dist
from aiodist.base.errors import CollectiveMismatch, GroupBroken, NonFiniteValues, UsageError
from aiodist.base.types import ReduceOp
from aiodist.group import ErrorFeedback, ProcessGroup, pieces
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def given_by(rank: int, count: int, dtype: Any = np.float32) -> Any:
    return (np.random.default_rng(1000 * rank + count).standard_normal(count) * (rank + 1)).astype(dtype)


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return run_virtual(run_cluster(size, part))


@settings(max_examples=25)
@given(
    size=st.integers(1, 4),
    count=st.integers(0, 3000),
    codec=st.sampled_from(["int8", "int4", "int8/64", "int4/10"]),
    op=st.sampled_from([ReduceOp.SUM, ReduceOp.AVG]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["plain", "out", "strided"]),
)
def test_every_rank_has_the_same_bits_near_the_exact_result(
    size: int, count: int, codec: str, op: ReduceOp, dtype: Any, layout: str
) -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine = given_by(pg.rank, count, dtype)
        tensor = mine.copy()
        if layout == "strided":
            tensor = np.repeat(mine, 2)[::2]
        out = np.empty_like(mine) if layout == "out" else None
        result = await pg.all_reduce_quantized(tensor, op, codec, out)
        assert result is (tensor if out is None else out)
        assert out is None or np.array_equal(tensor, mine)
        return np.array(result)

    results = on_all(size, part)
    assert len({result.tobytes() for result in results}) == 1
    given_ = [given_by(rank, count, dtype).astype(np.float64) for rank in range(size)]
    exact = np.sum(given_, axis=0) / (size if op is ReduceOp.AVG else 1)
    steps = 127 if codec.startswith("int8") else 7
    most = sum(np.abs(one).max(initial=0) for one in given_) / (size if op is ReduceOp.AVG else 1)
    own = np.finfo(np.float16).eps * 16 if np.dtype(dtype).itemsize == 2 else 1e-5
    # Each contribution by half a scale, their sum by half of its own, and the dtype's own rounding.
    assert np.abs(results[0].astype(np.float64) - exact).max(initial=0) <= 1.1 * most / steps + own * most


@pytest.mark.parametrize("magnitude", [1e-45, 3e-44, 1e-41, 3e-39, 9e-37, 1e-30, 1.0, 3e37])
@pytest.mark.parametrize("codec", ["int8/64", "int4/10"])
def test_no_magnitude_of_float32_is_lost(codec: str, magnitude: float) -> None:
    def mine(rank: int) -> Any:
        return (np.random.default_rng(rank).uniform(-1, 1, 300) * magnitude).astype(np.float32)

    async def part(pg: ProcessGroup) -> Any:
        return await pg.all_reduce_quantized(mine(pg.rank), codec=codec)

    results = on_all(2, part)
    assert results[0].tobytes() == results[1].tobytes()
    exact = mine(0).astype(np.float64) + mine(1)
    steps, step = 127 if codec.startswith("int8") else 7, 2.0**-149
    assert np.abs(results[0] - exact).max() <= 1.01 * (2 * magnitude / steps + 2 * step)
    assert np.count_nonzero(results[0]) > 100 or magnitude < 1e-44


def test_many_pieces_of_which_several_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "AT_ONCE", 512)
    pieces.pieces.cache_clear()

    async def part(pg: ProcessGroup) -> Any:
        tensor = given_by(pg.rank, 5000)
        beside = pg.all_reduce(np.full(3, pg.rank + 1.0), async_op=True)
        work = pg.all_reduce_quantized(tensor, codec="int8/64", async_op=True)
        after = pg.all_reduce(np.full(3, pg.rank + 10.0), async_op=True)
        return (await after)[0], (await beside)[0], await work

    results = on_all(3, part)
    pieces.pieces.cache_clear()
    exact = np.sum([given_by(rank, 5000) for rank in range(3)], axis=0)
    for after, beside, tensor in results:
        assert (after, beside) == (33, 6)
        assert np.abs(tensor - exact).max() < 0.3
        assert tensor.tobytes() == results[0][2].tobytes()


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_with_feedback_the_mean_over_many_steps_is_exact(op: ReduceOp) -> None:
    steps, count = 60, 200

    async def part(pg: ProcessGroup) -> Any:
        feedback, total = ErrorFeedback(), np.zeros(count)
        for _ in range(steps):
            total += await pg.all_reduce_quantized(given_by(pg.rank, count), op, "int4", feedback=feedback)
        assert feedback.error is not None
        return total / steps

    means = on_all(3, part)
    exact = np.sum([given_by(rank, count) for rank in range(3)], axis=0) / (3 if op is ReduceOp.AVG else 1)
    without = 0.5
    assert np.abs(means[0] - exact).max() < without / 10


def test_a_value_that_is_not_finite_is_told_to_all_and_nothing_has_changed() -> None:
    async def part(pg: ProcessGroup) -> Any:
        feedback = ErrorFeedback()
        tensor = given_by(pg.rank, 3000)
        await pg.all_reduce_quantized(tensor.copy(), feedback=feedback)
        left = np.array(feedback.error)
        if pg.rank == 1:
            tensor[1500] = np.inf
        before = tensor.copy()
        with pytest.raises(
            NonFiniteValues, match="rank 1 gave values that are not finite, in 1 block of 1024"
        ) as caught:
            await pg.all_reduce_quantized(tensor, feedback=feedback)
        assert (caught.value.rank, caught.value.blocks) == (1, 1)
        assert tensor.tobytes() == before.tobytes()
        assert np.array_equal(left, np.array(feedback.error))
        kept = await pg.all_reduce_quantized(tensor, non_finite="keep")
        return np.isnan(kept)

    for poisoned in on_all(3, part):
        assert poisoned[1500] and 3000 > np.count_nonzero(~poisoned) >= 3000 - 1024


def test_a_sum_that_overflows_accuses_nobody() -> None:
    async def part(pg: ProcessGroup) -> None:
        tensor = np.full(10, 3e38, np.float32)
        with pytest.raises(NonFiniteValues, match="the sum overflows") as caught:
            await pg.all_reduce_quantized(tensor)
        assert caught.value.rank is None
        assert (tensor == np.float32(3e38)).all()

    on_all(2, part)


@pytest.mark.parametrize(
    "other", [{"codec": "int4"}, {"codec": "int8/512"}, {"op": ReduceOp.AVG}, {"agree_on": "another plan"}]
)
def test_ranks_must_agree_on_codec_block_and_plan(other: dict[str, Any]) -> None:
    async def part(pg: ProcessGroup) -> str:
        with pytest.raises(CollectiveMismatch) as caught:
            await pg.all_reduce_quantized(given_by(pg.rank, 100), **(other if pg.rank == 1 else {}))
        return str(caught.value)

    for text in on_all(2, part):
        assert "rank 0: all_reduce_quantized(float32[100], SUM, int8/1024) at " in text
        assert text.count("test_quantized.py:") == 2


def test_one_that_is_not_quantised_is_another_operation() -> None:
    async def part(pg: ProcessGroup) -> None:
        call = pg.all_reduce if pg.rank else pg.all_reduce_quantized
        with pytest.raises(CollectiveMismatch):
            await call(np.ones(10, np.float32))

    on_all(2, part)


@pytest.mark.parametrize(
    ("tensor", "more", "text"),
    [
        (np.ones(3, np.int32), {}, "all_reduce_quantized of int32"),
        (np.ones(3, np.complex64), {}, "all_reduce_quantized of complex64"),
        (np.ones(3, np.float32), {"op": ReduceOp.MAX}, "all_reduce_quantized of MAX"),
        (np.ones(3, np.float32), {"codec": "int2"}, "codec must be 'int8' or 'int4', got 'int2'"),
        (np.ones(3, np.float32), {"codec": "int8/3"}, "codec must be"),
        (np.ones(3, np.float32), {"codec": "int8/"}, "codec must be"),
        (np.ones(3, np.float32), {"codec": 8}, "codec must be"),
        (np.ones(3, np.float32), {"non_finite": "ignore"}, "non_finite must be 'raise' or 'keep'"),
        (np.ones(3, np.float32), {"feedback": 1}, "feedback must be an ErrorFeedback"),
        (np.ones(3, np.float32), {"agree_on": 3}, "agree_on must be a string"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_sent(tensor: Any, more: Any, text: str) -> None:
    async def part(pg: ProcessGroup) -> None:
        with pytest.raises(UsageError, match=text):
            await pg.all_reduce_quantized(tensor, **more)
        await pg.barrier()

    on_all(2, part)


def test_a_feedback_belongs_to_one_tensor_and_one_operation_at_a_time() -> None:
    async def part(pg: ProcessGroup) -> None:
        feedback = ErrorFeedback()
        work = pg.all_reduce_quantized(given_by(pg.rank, 100), feedback=feedback, async_op=True)
        with pytest.raises(UsageError, match="in use"):
            pg.all_reduce_quantized(given_by(pg.rank, 100), feedback=feedback, async_op=True)
        with pytest.raises(UsageError, match="in use"):
            feedback.reset()
        await work
        with pytest.raises(UsageError, match=r"of shape \(100,\), this one has \(99,\)"):
            await pg.all_reduce_quantized(given_by(pg.rank, 99), feedback=feedback)
        feedback.reset()
        await pg.all_reduce_quantized(given_by(pg.rank, 99), feedback=feedback)

    on_all(2, part)


def test_cancelling_who_awaits_it_does_not_stop_it() -> None:
    async def part(pg: ProcessGroup) -> Any:
        tensor = given_by(pg.rank, 100)
        work = pg.all_reduce_quantized(tensor, async_op=True)

        async def waits() -> None:
            await work

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await pg.drain()
        await pg.barrier()
        return tensor

    results = on_all(2, part)
    assert results[0].tobytes() == results[1].tobytes() != given_by(0, 100).tobytes()


def test_a_group_that_breaks_meanwhile_fails_it() -> None:
    async def part(pg: ProcessGroup) -> None:
        feedback = ErrorFeedback()
        if pg.rank:
            pg.abort("no more")
            return
        with pytest.raises(GroupBroken):
            await pg.all_reduce_quantized(given_by(pg.rank, 100), feedback=feedback)
        assert not feedback.busy and feedback.error is None

    on_all(2, part)


def test_scalars_and_read_only_arrays_come_back_as_new_values() -> None:
    async def part(pg: ProcessGroup) -> None:
        assert abs(float(await pg.all_reduce_quantized(pg.rank + 1.5)) - 4.0) < 1e-2
        tensor = np.full(10, pg.rank + 1.0, np.float32)
        tensor.flags.writeable = False
        result = await pg.all_reduce_quantized(tensor)
        assert result is not tensor and (np.abs(result - 3) < 0.05).all()

    on_all(2, part)


def test_public_names() -> None:
    assert dist.ErrorFeedback is ErrorFeedback and dist.NonFiniteValues is NonFiniteValues


def test_it_counts_as_one_call_whatever_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "AT_ONCE", 64)
    pieces.pieces.cache_clear()

    async def part(pg: ProcessGroup) -> tuple[int, ...]:
        before = pg.barrier()
        work = pg.all_reduce_quantized(given_by(pg.rank, 1000), codec="int8/8")
        after = pg.barrier()
        await work
        await before
        await after
        assert repr(work) == f"<Work all_reduce_quantized #{work.seq} done>"
        return before.seq, work.seq, after.seq

    for first, second, third in on_all(2, part):
        assert (second - first, third - second) == (1, 1)
    pieces.pieces.cache_clear()


def test_one_that_is_never_awaited_is_shown_at_its_line() -> None:
    async def part(pg: ProcessGroup) -> None:
        pg.all_reduce_quantized(given_by(pg.rank, 100))

    with pytest.raises(BaseExceptionGroup) as caught:
        on_all(2, part)
    for error in caught.value.exceptions:
        assert isinstance(error, dist.ForgottenAwait)
        assert "all_reduce_quantized at " in str(error) and "test_quantized.py:" in str(error)


def test_operations_that_are_under_way_together_share_no_memory_and_later_ones_use_it_again() -> None:
    async def part(pg: ProcessGroup) -> Any:
        def tensor(number: int) -> Any:
            return given_by(pg.rank + 10 * number, 500)

        works = [pg.all_reduce_quantized(tensor(number), async_op=True) for number in range(3)]
        first = [await work for work in works]
        rooms = pg._quantized._rooms
        (kept,) = rooms._kept.values()
        again = [await pg.all_reduce_quantized(tensor(number)) for number in range(3)]
        (still,) = rooms._kept.values()
        assert still is kept
        return [one.tobytes() for one in first], [one.tobytes() for one in again]

    for first, again in on_all(2, part):
        assert first == again and len(set(first)) == 3


def test_kept_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodist.group.quantized.MOST_KEPT", 5000)

    async def part(pg: ProcessGroup) -> list[int]:
        for count in (1000, 1010, 1020, 1030, 9000):
            await pg.all_reduce_quantized(given_by(pg.rank, count))
        return [sum(room.nbytes for room in kept) for kept in pg._quantized._rooms._kept.values()]

    for kept in on_all(2, part):
        assert sum(kept) <= 5000
