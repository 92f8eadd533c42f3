"""The fast path takes what the general path takes, where it can."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from aiodist.base.operations import Kind
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import COSTLY

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@spmd(transport="shm")
async def test_joined_results_take_the_fast_path_as_stacked_ones_do(pg: ProcessGroup) -> None:
    mine = np.arange(6.0).reshape(2, 3) + 10 * pg.rank
    both = np.concatenate([np.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(pg.size)])
    fast = core_of(pg).fast_path
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


@pytest.mark.slow(COSTLY)
@needs_torch
@spmd(transport="shm")
async def test_torch_tensors_take_the_fast_path_and_come_back_themselves(pg: ProcessGroup) -> None:
    import torch

    fast = core_of(pg).fast_path
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

    fast = core_of(pg).fast_path
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
