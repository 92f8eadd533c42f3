"""A group of one gives what it gets, by its own fast path and by the general one alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist import _engine
from aiodist.base.environment.thresholds import Thresholds
from tests.helpers import core_of

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

CALLS: dict[str, Callable[[dist.ProcessGroup, Any], dist.Work[Any]]] = {
    "all_reduce": lambda pg, t: pg.all_reduce(t),
    "all_reduce, out": lambda pg, t: pg.all_reduce(t, out=np.zeros_like(t)),
    "average": lambda pg, t: pg.all_reduce(t, dist.ReduceOp.AVG),
    "reduce": lambda pg, t: pg.reduce(t),
    "broadcast": lambda pg, t: pg.broadcast(t),
    "all_gather": lambda pg, t: pg.all_gather(t),
    "all_gather, joined": lambda pg, t: pg.all_gather(t, np.zeros_like(t)),
    "gather": lambda pg, t: pg.gather(t),
    "scatter": lambda pg, t: pg.scatter(np.zeros_like(t), t[None]),
    "reduce_scatter": lambda pg, t: pg.reduce_scatter(t),
    "all_to_all": lambda pg, t: pg.all_to_all(t),
    "barrier": lambda pg, t: pg.barrier(),
}


def values(shape: tuple[int, ...], salt: int = 0) -> Any:
    """Distinct values for each element."""
    return np.arange(salt, salt + int(np.prod(shape)), dtype=np.float64).reshape(shape)


async def outcome(pg: dist.ProcessGroup, call: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The result of a call, and what it left of its input."""
    tensor = values(shape, 5)
    return await CALLS[call](pg, tensor), tensor


@pytest.mark.parametrize("call", CALLS)
async def test_it_does_what_the_general_path_does(call: str) -> None:
    async with await dist.init_process_group(world_size=1, rank=0) as pg:
        core = core_of(pg)
        assert core.starter is not None
        for shape in ((4,), (2, 3), (1, 1)):
            found = await outcome(pg, call, shape)
            fast, core.starter = core.starter, None
            wanted = await outcome(pg, call, shape)
            core.starter = fast
            for one, other in zip(found, wanted, strict=True):
                assert type(one) is type(other) and np.array_equal(one, other), (call, shape)
                assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)


async def test_numbers_calls_and_lines_are_kept() -> None:
    async with await dist.init_process_group(world_size=1, rank=0) as pg:
        core, tensor = core_of(pg), values((4,))
        first = core.numbers.issued
        works = [pg.all_reduce(tensor, async_op=True) for _ in range(3)]
        works.append(pg.all_gather(tensor[::2], async_op=True))  # strided: the general path
        works.append(pg.barrier(async_op=True))
        assert [work.seq for work in works] == list(range(first, first + 5))
        assert [work.op for work in works] == ["all_reduce"] * 3 + ["all_gather", "barrier"]
        assert all(work.done() for work in works[:3])
        for work in works:
            await work
        call = core.flight.call(first + 2)
        assert call is not None and (call.seq, call.name) == (first + 2, "all_reduce")
        for _ in range(100):
            await pg.barrier()
        assert core.starter is not None and core.starter.call(first + 2) is None
        assert pg.statistics()["operations"] == {"issued": first + 105, "in_flight": 0}


async def test_a_dropped_handle_is_a_forgotten_await() -> None:
    pg = await dist.init_process_group(world_size=1, rank=0)
    pg.all_reduce(values((3,)))
    with pytest.raises(dist.ForgottenAwait, match="all_reduce"):
        await pg.aclose()


async def test_large_arrays_go_the_general_way() -> None:
    async with await dist.init_process_group(world_size=1, rank=0) as pg:
        large = values((Thresholds().inline // 8 + 1,))
        issued = []
        core = core_of(pg)
        general = core.issue

        def issue(*args: Any, **named: Any) -> Any:
            issued.append(args)
            return general(*args, **named)

        core.issue = issue  # type: ignore[method-assign]
        rows = await pg.all_gather(large)
        assert len(issued) == 1 and np.array_equal(rows[0], large)
        await pg.all_gather(large[:5])
        assert len(issued) == 1
        del core.issue


async def test_subgroups_of_one() -> None:
    async with await dist.init_process_group(world_size=1, rank=0) as pg:
        other = await pg.new_group([0])
        assert other is not None
        tensor = values((4,), 3)
        assert (await other.all_gather(tensor)).tolist() == [tensor.tolist()]
        await other.aclose()
        with pytest.raises(dist.GroupClosed):
            other.all_reduce(tensor)
