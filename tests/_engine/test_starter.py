"""Prepared calls: which calls the starter takes, and which it leaves to the general way."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from aiodist import _engine, init_process_group
from aiodist.base.errors import UsageError
from aiodist.base.operations import Kind
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


async def joined_results_take_the_fast_path_as_stacked_ones_do(pg: ProcessGroup) -> None:
    mine = np.arange(6.0).reshape(2, 3) + 10 * pg.rank
    both = np.concatenate([np.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(pg.size)])
    fast: Any = core_of(pg).starter
    assert fast is not None
    for shape in ((pg.size, 2, 3), (pg.size * 2, 3)):
        out = np.empty(shape)
        work = fast.start(Kind.all_gather, mine, out, False)
        assert work is not None
        assert await work is out
        assert np.array_equal(out.reshape(both.shape), both)
        out = np.empty(shape)
        assert await pg.gather(mine, 0, out if pg.rank == 0 else None) is (out if pg.rank == 0 else None)
        assert pg.rank or np.array_equal(out.reshape(both.shape), both)
        part = np.empty((2, 3))
        work = fast.start(Kind.scatter, part, both.reshape(shape) if pg.rank == 0 else None, False, root=0)
        assert work is not None
        await work
        assert np.array_equal(part, mine)
    assert fast.start(Kind.all_gather, mine, np.empty((2, 6)), False) is None


async def arrays_that_are_only_read_may_be_read_only(pg: ProcessGroup) -> None:
    fast: Any = core_of(pg).starter
    assert fast is not None

    def read_only(*shape: int) -> Any:
        array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape) + 100 * pg.rank
        array.flags.writeable = False
        return array

    def refused(*call: Any, **more: Any) -> bool:
        return fast.start(*call, **more) is None

    part, whole = read_only(3), read_only(2 * pg.size, 3)
    for call, more in (
        ((Kind.all_gather, part, None, False), {}),
        ((Kind.gather, part, None, False), {"root": 1}),
        ((Kind.all_to_all, whole, None, False), {}),
        ((Kind.reduce_scatter, whole, None, False, ReduceOp.SUM), {}),
        ((Kind.all_reduce, part, np.empty(3, np.int64), False, ReduceOp.SUM), {}),
        ((Kind.scatter, np.empty((2, 3), np.int64), whole if pg.rank == 0 else None, False), {"root": 0}),
    ):
        work = fast.start(*call, **more)
        assert work is not None, call[0]
        await work
    assert refused(Kind.all_reduce, part, None, False, ReduceOp.SUM)
    assert refused(Kind.all_reduce, np.arange(3), part, False, ReduceOp.SUM)
    assert refused(Kind.scatter, part, whole if pg.rank == 0 else None, False, root=0)
    work = fast.start(Kind.broadcast, part if pg.rank == 1 else np.empty(3, np.int64), None, False, root=1)
    assert (await work).tolist() == [100, 101, 102]


async def forms_of_a_part(pg: ProcessGroup) -> None:
    """A part of one row may have its axis or not, and an array none at all."""
    fast: Any = core_of(pg).starter
    assert fast is not None
    rows = np.arange(4.0 * pg.size).reshape(pg.size, 4) + 1000 * pg.rank
    every = [np.arange(4.0 * pg.size).reshape(pg.size, 4) + 1000 * rank for rank in range(pg.size)]
    total = np.sum(every, axis=0)
    single = np.array(7.0 + pg.rank)
    work = fast.start(Kind.all_reduce, single, None, False, ReduceOp.SUM)
    assert await work is single and single == 7 * pg.size + sum(range(pg.size))
    for out in (np.empty((1, 4)), np.empty(4)):
        work = fast.start(Kind.reduce_scatter, rows, out, False, ReduceOp.SUM)
        assert await work is out and np.array_equal(out.reshape(4), total[pg.rank])
        core_of(pg).start_prepared, kept = (lambda *_: None), core_of(pg).start_prepared
        out[...] = 0  # the general way takes it, too
        assert await pg.reduce_scatter(rows, out) is out and np.array_equal(out.reshape(4), total[pg.rank])
        core_of(pg).start_prepared = kept


async def nothing_is_taken_for_an_op_or_a_root_that_only_equals_one(pg: ProcessGroup) -> None:
    fast: Any = core_of(pg).starter
    assert fast is not None
    for op, root in ((ReduceOp.SUM, -1), (1, -1), (True, -1), (ReduceOp.AVG, -1), (99, -1), ("SUM", -1)):
        work = fast.start(Kind.all_reduce, np.arange(3), None, False, op, root)
        assert (work is None) == (op is not ReduceOp.SUM), op
        if work is not None:
            await work
    for odd in (True, 1.0, None, 7, -2):
        assert fast.start(Kind.broadcast, np.arange(3), None, False, 0, odd) is None
    await pg.barrier()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "turned": lambda array: np.ascontiguousarray(array.T).T,
    "backwards": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "odd": lambda array: (
        np.frombuffer(b"." + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    ),
}


async def strided_arrays_give_what_the_general_way_gives(pg: ProcessGroup) -> None:
    for layout in LAYOUTS:
        await both_ways(pg, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_strided_arrays_alone(layout: str) -> None:
    async with await init_process_group(world_size=1, rank=0) as pg:
        await both_ways(pg, layout)


async def both_ways(pg: ProcessGroup, layout: str) -> None:
    """Compare what prepared calls give with what the general way gives."""
    core, place = core_of(pg), LAYOUTS[layout]
    prepared, issue = core.start_prepared, core.issue

    def refuse(*_call: object, **_named: object) -> Any:
        raise AssertionError("the general way was taken")

    def array(*shape: int, start: int = 0) -> Any:
        made = np.arange(start, start + np.prod(shape), dtype=np.int64).reshape(shape) + 1000 * pg.rank
        return place(made)

    def writable(*shape: int) -> Any:
        found = array(*shape)
        return (
            found
            if found.flags.writeable
            else np.lib.stride_tricks.as_strided(
                np.zeros(found.nbytes + 1, np.uint8)[1:].view(np.int64), shape, found.strides
            )
        )

    outcomes = []
    for general in (False, True):
        core.start_prepared = (lambda *_: None) if general else prepared
        core.issue = issue if general else refuse  # type: ignore[method-assign]
        found: list[Any] = []
        for kind in ("all_reduce", "reduce", "broadcast"):
            tensor = writable(3, 4)
            tensor[...] = array(3, 4)
            result = await getattr(pg, kind)(tensor)
            assert result is tensor or (kind == "reduce" and pg.rank)
            found.append(tensor.copy())
        out = writable(3, 4)
        assert await pg.all_reduce(array(3, 4), out=out) is out
        found += [out.copy(), await pg.all_gather(array(3, 4))]
        out = writable(pg.size, 3, 4)
        assert await pg.all_gather(array(3, 4), out) is out
        found += [out.copy(), await pg.reduce_scatter(array(2 * pg.size, 3))]
        out = writable(2, 3)
        await pg.scatter(out, array(pg.size, 2, 3) if pg.rank == 0 else None)
        found.append(out.copy())
        outcomes.append(found)
    core.start_prepared, core.issue = prepared, issue  # type: ignore[method-assign]
    for one, other in zip(*outcomes, strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype


async def what_overlaps_is_refused(pg: ProcessGroup) -> None:
    fast: Any = core_of(pg).starter
    assert fast is not None
    base = np.arange(10.0)
    for lead, other in (
        (np.lib.stride_tricks.as_strided(base, (3, 3), (8, 8)), None),
        (base[::2], base[1::2]),  # their bounds do
        (base[:5], base[4:9]),
        (base[:5], base[:5]),
    ):
        assert fast.start(Kind.all_reduce, lead, other, False, ReduceOp.SUM) is None
    await pg.barrier()


async def numbers_come_back_as_numbers(pg: ProcessGroup) -> None:
    """As by the general way, of the same types."""
    core = core_of(pg)
    prepared, rank = core.start_prepared, pg.rank

    def refuse(*_call: object, **_named: object) -> Any:
        raise AssertionError("the general way was taken")

    numbers: list[Any] = [2.5, 3, True, 1 + 2j, np.float32(1.5), np.int8(7), np.bool_(False)]
    for number in numbers:
        mine = type(number)(number + rank) if not isinstance(number, bool | np.bool_) else number
        outcomes = []
        for general in (False, True):
            core.start_prepared = (lambda *_: None) if general else prepared
            issue = core.issue
            if not general:
                core.issue = refuse  # type: ignore[method-assign]
            found = [
                await pg.all_reduce(mine),
                await pg.broadcast(mine, 1),
                await pg.all_gather(mine),
                await pg.reduce(mine, 1),
                await pg.gather(mine, 0),
                await pg.all_reduce(mine, timeout=30),
            ]
            core.issue = issue  # type: ignore[method-assign]
            outcomes.append([(type(one), one) for one in found])
        assert repr(outcomes[0]) == repr(outcomes[1]), (number, outcomes)
        assert outcomes[0][1][1] == type(number)(
            number + 1 if not isinstance(number, bool | np.bool_) else number
        )
    core.start_prepared = prepared
    with pytest.raises(UsageError):
        pg.all_reduce(1 << 80)
    await pg.barrier()


@spmd(transport="shm")
async def test_calls_of_arrays_and_numbers(pg: ProcessGroup) -> None:
    """All in one job, which costs half a second, and each of them next to nothing."""
    for calls in (
        joined_results_take_the_fast_path_as_stacked_ones_do,
        arrays_that_are_only_read_may_be_read_only,
        forms_of_a_part,
        nothing_is_taken_for_an_op_or_a_root_that_only_equals_one,
        strided_arrays_give_what_the_general_way_gives,
        what_overlaps_is_refused,
        numbers_come_back_as_numbers,
    ):
        await calls(pg)


@pytest.mark.slow(COSTLY)
@needs_torch
@spmd(transport="shm")
async def test_torch_tensors_take_the_fast_path_and_come_back_themselves(pg: ProcessGroup) -> None:
    import torch

    fast: Any = core_of(pg).starter
    assert fast is not None
    values = [torch.arange(4.0).reshape(2, 2) + 10 * rank for rank in range(pg.size)]
    total, mine = sum(values), values[pg.rank]

    async def went(kind: Kind, lead: Any, other: Any, **more: Any) -> Any:
        work = fast.start(kind, lead, other, False, **more)
        assert work is not None
        return await work

    tensor, out = mine.clone(), torch.empty(2, 2)
    assert await went(Kind.all_reduce, tensor, None, op=ReduceOp.SUM) is tensor
    assert torch.equal(tensor, total)
    assert await went(Kind.all_reduce, mine, out, op=ReduceOp.SUM) is out
    assert torch.equal(out, total)
    assert torch.equal(mine, values[pg.rank])
    tensor = mine.clone()
    assert await went(Kind.broadcast, tensor, None, root=1) is tensor
    assert torch.equal(tensor, values[1])
    gathered = torch.empty(pg.size, 2, 2)
    assert await went(Kind.all_gather, mine, gathered) is gathered
    assert torch.equal(gathered, torch.stack(values))
    dealt = torch.empty(2, 2)
    await went(Kind.scatter, dealt, torch.cat(values) if pg.rank == 1 else None, root=1)
    assert torch.equal(dealt, mine)
    swapped = torch.empty(pg.size, 2)
    theirs = torch.stack([torch.tensor([rank, pg.rank]) for rank in range(pg.size)]).float()
    assert await went(Kind.all_to_all, theirs, swapped) is swapped
    assert torch.equal(swapped, theirs.flip(1))
    result = await went(Kind.reduce, mine, out if pg.rank == 0 else None, op=ReduceOp.SUM, root=0)
    assert result is (out if pg.rank == 0 else None)


@pytest.mark.slow(COSTLY)
@needs_torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@spmd(transport="shm")
async def test_what_is_more_than_memory_goes_the_long_way(pg: ProcessGroup) -> None:
    import torch

    fast: Any = core_of(pg).starter
    assert fast is not None
    ones = torch.ones(pg.size, 3)
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    for unusual in (
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.nested.nested_tensor([torch.ones(3)]),
        ones.t(),
        freed,
        [1.0],
        None,
    ):
        assert fast.start(Kind.all_reduce, unusual, None, False, ReduceOp.SUM) is None
    assert fast.start(Kind.all_to_all, ones, None, False) is None
    assert fast.start(Kind.all_to_all, ones, np.ones((pg.size, 3), np.float64), False) is None
    assert type(await pg.all_to_all(ones)) is torch.Tensor
    assert type(await pg.all_gather(torch.full((2,), pg.rank))) is torch.Tensor
