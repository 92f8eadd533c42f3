"""torch's other shapes of the collectives: lists of tensors, joined outputs, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup, shapes
from aiodist.testing.cluster import run_cluster


def mine(rank: int, *shape: int) -> Any:
    """Distinct values for a rank and each element."""
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    array += 1000 * (rank + 1)  # in place: a sum would turn a 0-d array into a number
    return array


async def test_all_gather_into_a_list_in_place() -> None:
    async def main(pg: ProcessGroup) -> None:
        wide = np.zeros((3, 2, 8), np.int64)
        rows = [wide[0, :, :4], wide[1, :, ::2], np.zeros((4, 2), np.int64).T]  # contiguous or not
        assert await shapes.all_gather(pg, rows, mine(pg.rank, 2, 4), False) is rows
        for rank, row in enumerate(rows):
            assert np.array_equal(row, mine(rank, 2, 4))
        assert not wide[0, :, 4:].any() and not wide[1, :, 1::2].any() and not wide[2].any()

    await run_cluster(3, main)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (4,), (), (0, 3)])
async def test_all_gather_into_one_tensor(shape: tuple[int, ...], stacked: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        joined = (3 * shape[0], *shape[1:]) if shape else (3,)
        output = np.zeros((3, *shape) if stacked else joined, np.int64)
        assert await shapes.all_gather_into_tensor(pg, output, mine(pg.rank, *shape), False) is output
        expected = np.stack([mine(rank, *shape) for rank in range(3)])
        assert np.array_equal(output, expected.reshape(output.shape))

    await run_cluster(3, main)


async def test_all_gather_into_a_strided_tensor() -> None:
    async def main(pg: ProcessGroup) -> None:
        wide = np.zeros((4, 6), np.int64)
        output = wide[:, ::2]
        await shapes.all_gather_into_tensor(pg, output, mine(pg.rank, 2, 3), False)
        assert np.array_equal(output, np.concatenate([mine(0, 2, 3), mine(1, 2, 3)]))
        assert not wide[:, 1::2].any()

    await run_cluster(2, main)


async def test_reduce_scatter_of_a_list() -> None:
    async def main(pg: ProcessGroup) -> None:
        output = np.zeros((2, 2), np.int64)
        inputs = [mine(pg.rank, 2, 2) * (part + 1) for part in range(3)]
        inputs[1] = np.asfortranarray(inputs[1])
        before = [array.copy() for array in inputs]
        assert await shapes.reduce_scatter(pg, output, inputs, ReduceOp.SUM, False) is output
        expected = sum(mine(rank, 2, 2) * (pg.rank + 1) for rank in range(3))
        assert np.array_equal(output, expected)
        assert all(np.array_equal(a, b) for a, b in zip(inputs, before, strict=True))

    await run_cluster(3, main)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (4,), ()])
async def test_reduce_scatter_of_one_tensor(shape: tuple[int, ...], stacked: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        joined = (3 * shape[0], *shape[1:]) if shape else (3,)
        tensor = mine(pg.rank, *((3, *shape) if stacked else joined))
        output = np.zeros(shape, np.int64)
        assert await shapes.reduce_scatter_tensor(pg, output, tensor, ReduceOp.MAX, False) is output
        assert np.array_equal(output, mine(2, *tensor.shape).reshape(3, *shape)[pg.rank])

    await run_cluster(3, main)


async def test_lists_and_tensors_are_the_same_operation() -> None:
    # One rank may pass a list where another passes a tensor: what travels is the same.
    async def main(pg: ProcessGroup) -> None:
        rows = [np.zeros(2, np.int64) for _ in range(2)]
        if pg.rank == 0:
            await shapes.all_gather(pg, rows, mine(0, 2), False)
            assert np.array_equal(rows[1], mine(1, 2))
        else:
            assert np.array_equal((await pg.all_gather(mine(1, 2)))[0], mine(0, 2))

    await run_cluster(2, main)


async def test_recv_gives_the_senders_global_rank() -> None:
    async def main(pg: ProcessGroup) -> None:
        pair = await pg.new_group([1, 3])
        if pair is None:
            return
        if pair.rank == 0:
            await pair.send(mine(1, 3), 1)
            await pair.send(mine(2, 3), 1, tag=4)
        else:
            tensor = np.zeros(3, np.int64)
            assert await shapes.recv(pair, tensor, 0, 0, False) == 1
            assert np.array_equal(tensor, mine(1, 3))
            assert await shapes.recv(pair, tensor, None, 4, False) == 1
            assert np.array_equal(tensor, mine(2, 3))

    await run_cluster(4, main)


i64 = np.int64
Call = Callable[[ProcessGroup], Any]
REFUSED: list[tuple[str, Call]] = [
    (
        "tensor_list must be a list of 2 tensors, got ndarray",
        lambda pg: shapes.all_gather(pg, np.zeros((2, 3)), np.zeros(3), False),  # type: ignore[arg-type]
    ),
    (
        "tensor_list has 3 tensors, the group has 2 ranks",
        lambda pg: shapes.all_gather(pg, [np.zeros(3)] * 3, np.zeros(3), False),
    ),
    (
        "tensor_list[1] is float64[4], expected float64[3]",
        lambda pg: shapes.all_gather(pg, [np.zeros(3), np.zeros(4)], np.zeros(3), False),
    ),
    (
        "tensor_list[0] is int64[3], expected float64[3]",
        lambda pg: shapes.all_gather(pg, [np.zeros(3, i64), np.zeros(3)], np.zeros(3), False),
    ),
    (
        "tensor_list[1] and tensor_list[0] share memory",
        lambda pg: shapes.all_gather(pg, [np.zeros(3)] * 2, np.ones(3), False),
    ),
    (
        "tensor_list[1] and tensor share memory",
        lambda pg: shapes.all_gather(pg, [np.zeros(3), x := np.zeros(3)], x, False),
    ),
    (
        "output_tensor has shape (5,), expected (6,) or (2, 3)",
        lambda pg: shapes.all_gather_into_tensor(pg, np.zeros(5), np.zeros(3), False),
    ),
    (
        "output_tensor has dtype int64",
        lambda pg: shapes.all_gather_into_tensor(pg, np.zeros(6, i64), np.zeros(3), False),
    ),
    (
        "output_tensor and input_tensor share memory",
        lambda pg: shapes.all_gather_into_tensor(pg, x := np.zeros(6), x[:3], False),
    ),
    (
        "input_list has 1 tensors",
        lambda pg: shapes.reduce_scatter(pg, np.zeros(3), [np.zeros(3)], ReduceOp.SUM, False),
    ),
    (
        "output and input_list[1] share memory",
        lambda pg: shapes.reduce_scatter(pg, x := np.zeros(3), [np.zeros(3), x], ReduceOp.SUM, False),
    ),
    (
        "AVG of int64",
        lambda pg: shapes.reduce_scatter(pg, np.zeros(3, i64), [np.ones(3, i64)] * 2, ReduceOp.AVG, False),
    ),
    (
        "input has shape (5,), expected (6,) or (2, 3)",
        lambda pg: shapes.reduce_scatter_tensor(pg, np.zeros(3), np.zeros(5), ReduceOp.SUM, False),
    ),
    (
        "output and input share memory",
        lambda pg: shapes.reduce_scatter_tensor(pg, (x := np.zeros(6))[:3], x, ReduceOp.SUM, False),
    ),
    ("src=2 is not a rank", lambda pg: shapes.recv(pg, np.zeros(3), 2, 0, False)),
    ("tag=-1", lambda pg: shapes.recv(pg, np.zeros(3), None, -1, False)),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[case[0][:50] for case in REFUSED])
async def test_refused_at_the_call_without_taking_a_number(message: str, call: Call) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=re.escape(message)):
            call(pg)
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3

    await run_cluster(2, main)
