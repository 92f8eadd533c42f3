"""Operations as calls of NCCL: which, with what, in which order. Addresses only: there is no device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.backends.base import Operation
from aiodist.backends.foreign.task import Task
from aiodist.backends.nccl.launch import Launch, LaunchMaker, Ways, ways_of
from aiodist.base.types import DTYPES, Call, Kind, ReduceOp

SOURCE, TARGET, STAGED = 1 << 30, 2 << 30, 3 << 30
STREAM = 99
F32 = np.dtype(np.float32)


class Noted:
    """In the place of a communicator: writes down how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


class Addresses(LaunchMaker):
    """What it allocates are addresses."""

    allocated = 0

    def _allocate(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        array = tensor(STAGED + self.allocated, count, dtype)
        self.allocated += 1 << 20
        return array


def tensor(address: int, count: int, dtype: Any = F32) -> DeviceArray:
    """One of so many elements."""
    return geometry(address, (count,), None, np.dtype(dtype), 0, None)


def operation(
    kind: Kind, source: Any, target: Any, op: ReduceOp | None = None, root: int = -1, **more: Any
) -> Task:
    """A task as the engine gets it."""
    array = source if source is not None else target
    call = Call(kind, 0, array.dtype, array.shape, op, root)
    return Task(np.empty, operation=Operation(call, None, source, target, None, lambda _: None, **more))  # type: ignore[arg-type]


def calls(task: Task, rank: int, size: int, maker: LaunchMaker | None = None) -> list[tuple[Any, ...]]:
    """What it makes of a collective."""
    return made((maker or Addresses(None, 0, rank, size)).collective(task))


def made(launch: Launch) -> list[tuple[Any, ...]]:
    """The calls of a launch."""
    noted = Noted()
    for call in launch.calls:
        call(noted, STREAM)
    return noted.calls


def test_all_reduce_in_place_and_not() -> None:
    x, y = tensor(SOURCE, 12), tensor(TARGET, 12)
    assert calls(operation(Kind.all_reduce, x, x, ReduceOp.SUM), 0, 4) == [
        ("allReduce", SOURCE, SOURCE, 12, 7, 0, STREAM)
    ]
    assert calls(operation(Kind.all_reduce, x, y, ReduceOp.AVG), 0, 4) == [
        ("allReduce", SOURCE, TARGET, 12, 7, 4, STREAM)
    ]


def test_complex_numbers_are_pairs() -> None:
    x, y = tensor(SOURCE, 12, np.complex128), tensor(TARGET, 3, np.complex128)
    assert calls(operation(Kind.reduce_scatter, x, y, ReduceOp.SUM), 0, 4) == [
        ("reduceScatter", SOURCE, TARGET, 6, 8, 0, STREAM)
    ]


def test_reduce_has_a_target_on_the_root_alone() -> None:
    x, y = tensor(SOURCE, 12, np.int64), tensor(TARGET, 12, np.int64)
    assert calls(operation(Kind.reduce, x, y, ReduceOp.MAX, 2), 2, 4) == [
        ("reduce", SOURCE, TARGET, 12, 4, 2, 2, STREAM)
    ]
    assert calls(operation(Kind.reduce, x, None, ReduceOp.MIN, 2), 1, 4) == [
        ("reduce", SOURCE, 0, 12, 4, 3, 2, STREAM)
    ]


def test_what_is_moved_is_bytes() -> None:
    x, y = tensor(SOURCE, 12), tensor(TARGET, 48)
    assert calls(operation(Kind.broadcast, None, x, root=1), 0, 4) == [
        ("broadcast", SOURCE, SOURCE, 48, 1, 1, STREAM)
    ]
    assert calls(operation(Kind.all_gather, x, y), 0, 4) == [("allGather", SOURCE, TARGET, 48, 1, STREAM)]


def test_gather_and_scatter_are_sends_and_receives() -> None:
    part, whole = tensor(SOURCE, 4), tensor(TARGET, 12)
    send = ("send", SOURCE, 16, 1, 1, STREAM)
    recvs = [("recv", TARGET + 16 * peer, 16, 1, peer, STREAM) for peer in range(3)]
    assert calls(operation(Kind.gather, part, None, root=1), 0, 3) == [send]
    assert calls(operation(Kind.gather, part, whole, root=1), 1, 3) == [send, *recvs]
    sends = [("send", TARGET + 16 * peer, 16, 1, peer, STREAM) for peer in range(3)]
    assert calls(operation(Kind.scatter, whole, part, root=1), 1, 3) == [
        *sends,
        ("recv", SOURCE, 16, 1, 1, STREAM),
    ]


def test_uneven_parts_and_empty_ones() -> None:
    x, y = tensor(SOURCE, 5, np.int8), tensor(TARGET, 7, np.int8)
    task = operation(Kind.all_to_all, x, y, target_sizes=[4, 3, 0], source_sizes=[0, 2, 3])
    assert calls(task, 0, 3) == [
        ("send", SOURCE, 2, 1, 1, STREAM),
        ("send", SOURCE + 2, 3, 1, 2, STREAM),
        ("recv", TARGET, 4, 1, 0, STREAM),
        ("recv", TARGET + 4, 3, 1, 1, STREAM),
    ]


def test_uneven_parts_are_broadcast_or_reduced_one_by_one() -> None:
    x, y = tensor(SOURCE, 2, np.int8), tensor(TARGET, 6, np.int8)
    assert calls(operation(Kind.all_gather, x, y, target_sizes=[4, 2, 0]), 1, 3) == [
        ("broadcast", TARGET, TARGET, 4, 1, 0, STREAM),
        ("broadcast", SOURCE, TARGET + 4, 2, 1, 1, STREAM),
    ]
    x, y = tensor(SOURCE, 6), tensor(TARGET, 2)
    task = operation(Kind.reduce_scatter, x, y, ReduceOp.SUM, source_sizes=[4, 2, 0])
    assert calls(task, 1, 3) == [
        ("reduce", SOURCE, 0, 4, 7, 0, 0, STREAM),
        ("reduce", SOURCE + 16, TARGET, 2, 7, 0, 1, STREAM),
    ]
    x, y = tensor(SOURCE, 6, np.complex64), tensor(TARGET, 2, np.complex64)
    task = operation(Kind.reduce_scatter, x, y, ReduceOp.PRODUCT, source_sizes=[4, 2, 0])
    assert calls(task, 1, 3) == [  # NCCL has no such reduction
        ("send", SOURCE, 32, 1, 0, STREAM),
        ("send", SOURCE + 32, 16, 1, 1, STREAM),
        *[("recv", STAGED + 16 * peer, 16, 1, peer, STREAM) for peer in range(3)],
    ]


@pytest.mark.parametrize("kind", [Kind.all_reduce, Kind.broadcast, Kind.all_gather, Kind.all_to_all])
def test_empty_tensors_are_no_calls(kind: Kind) -> None:
    x, y = tensor(SOURCE, 0), tensor(TARGET, 0)
    op = ReduceOp.BXOR if kind is Kind.all_reduce else None
    assert calls(operation(kind, x, y, op, 0), 0, 3) == []


def test_what_nccl_lacks_is_gathered_and_reduced_here() -> None:
    x = tensor(SOURCE, 6, np.int32)
    maker = Addresses(None, 0, 1, 3)
    launch = maker.collective(operation(Kind.all_reduce, x, x, ReduceOp.BXOR))
    assert made(launch) == [("allGather", SOURCE, STAGED, 24, 1, STREAM)]
    assert [array.nbytes for array in launch.task.rows] == [24] * 3  # alive until it is over
    assert len(launch.after) == 2  # the reduction, and what is copied out: nothing


def test_what_nccl_lacks_with_a_root_or_in_parts() -> None:
    x, part = tensor(SOURCE, 6, np.complex64), tensor(TARGET, 2, np.complex64)
    assert calls(operation(Kind.reduce, x, None, ReduceOp.PRODUCT, 2), 0, 3) == [
        ("send", SOURCE, 48, 1, 2, STREAM)
    ]
    assert calls(operation(Kind.reduce_scatter, x, part, ReduceOp.PRODUCT), 0, 3) == [
        *[("send", SOURCE + 16 * peer, 16, 1, peer, STREAM) for peer in range(3)],
        *[("recv", STAGED + 16 * peer, 16, 1, peer, STREAM) for peer in range(3)],
    ]


def test_messages_go_from_rank_0_to_rank_1_of_their_lane() -> None:
    maker = Addresses(None, 0, 5, 8)
    x = tensor(SOURCE, 10, np.float16)
    told = ("broadcast", SOURCE, SOURCE, 20, 1, 0, STREAM)
    assert made(maker.message(operation(Kind.send, x, None))) == [told]
    assert made(maker.message(operation(Kind.recv, None, x))) == [told]


@pytest.mark.parametrize(
    ("kind", "op", "dtype", "ways"),
    [
        (Kind.gather, None, F32, Ways(2, True)),
        (Kind.scatter, None, F32, Ways(2, False)),
        (Kind.all_to_all, None, F32, Ways(-1, True)),
        (Kind.reduce, ReduceOp.PRODUCT, np.dtype(np.complex64), Ways(2, True)),
        (Kind.reduce_scatter, ReduceOp.BXOR, np.dtype(np.int16), Ways(-1, True)),
        (Kind.all_reduce, ReduceOp.BXOR, np.dtype(np.int16), None),  # by an all_gather
        (Kind.reduce, ReduceOp.SUM, np.dtype(np.int16), None),  # widened
        (Kind.reduce, ReduceOp.PREMUL_SUM, F32, None),
        (Kind.reduce_scatter, ReduceOp.AVG, F32, None),
        (Kind.broadcast, None, F32, None),
        (Kind.all_gather, None, F32, None),
    ],
)
def test_who_exchanges_directly(
    kind: Kind, op: ReduceOp | None, dtype: np.dtype[np.generic], ways: Ways | None
) -> None:
    assert ways_of(Call(kind, 0, dtype, (12,), op, 2)) == ways


@pytest.mark.parametrize("kind", [Kind.gather, Kind.scatter, Kind.all_to_all])
def test_ways_are_those_of_the_operation(kind: Kind) -> None:
    """What an operation sends and receives goes ways that were connected for it, on all ranks."""
    size, root = 4, 2
    for rank in range(size):
        ways = ways_of(Call(kind, 0, F32, (4,), None, root))
        assert ways is not None
        one, four = tensor(SOURCE, 1), tensor(TARGET, 4)
        source, target = {
            Kind.gather: (one, four if rank == root else None),
            Kind.scatter: (four if rank == root else None, one),
            Kind.all_to_all: (tensor(SOURCE, 4), four),
        }[kind]
        made = calls(operation(kind, source, target, root=root), rank, size)
        gone = {(name == "send", peer) for name, _, _, _, peer, _ in made if peer != rank}
        assert gone == set(ways.moves(rank, size))


def test_ways_are_connected_by_a_byte_each() -> None:
    noted = Noted()
    call, memory = Addresses(None, 0, 1, 3).connecting(Ways(-1, True))
    call(noted, STREAM)
    assert memory.nbytes == 4
    assert noted.calls == [
        *[("send", STAGED + 3, 1, 1, peer, STREAM) for peer in (0, 2)],
        *[("recv", STAGED + peer, 1, 1, peer, STREAM) for peer in (0, 2)],
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_moved(dtype: np.dtype[np.generic]) -> None:
    x = tensor(SOURCE, 5, dtype)
    assert calls(operation(Kind.broadcast, None, x, root=0), 0, 2) == [
        ("broadcast", SOURCE, SOURCE, 5 * dtype.itemsize, 1, 0, STREAM)
    ]
