from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import GroupClosed, PeerLost, UsageError
from aiodist.base.types import ReduceOp
from aiodist.ddp import GradientSync

Array = npt.NDArray[Any]
TINY_CAP = 64 / (1 << 20)  # MiB: 64 bytes


class Handle:
    """Like a Work: cancelling who awaits it does not cancel it."""

    def __init__(self, tensor: Array) -> None:
        self.tensor = tensor
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self.future).__await__()


class World:
    """Ranks in one process. An operation is done once all have issued it, and all must issue the same."""

    def __init__(self, size: int) -> None:
        self.groups: list[Any] = [Group(self, rank) for rank in range(size)]  # in the place of ProcessGroups
        self.log: list[str] = []  # one entry an operation, in the order of completion
        self._calls: list[dict[int, tuple[str, Handle]]] = []

    def issue(self, group: Group, kind: str, tensor: Array) -> Handle:
        if group.issued == len(self._calls):
            self._calls.append({})
        call = self._calls[group.issued]
        group.issued += 1
        call[group.rank] = (kind, Handle(tensor))
        assert len({(k, h.tensor.shape, h.tensor.dtype) for k, h in call.values()}) == 1, (
            "different operations"
        )
        if len(call) == len(self.groups):
            self.log.append(f"{kind} {tensor.dtype.name}[{tensor.size}]")
            result = call[0][1].tensor.copy()
            if kind == "all_reduce":
                wide = np.mean([h.tensor.astype(np.complex128) for _, h in call.values()], axis=0)
                result = (wide if result.dtype.kind == "c" else wide.real).astype(result.dtype)
            for _, handle in call.values():
                handle.tensor[...] = result
                handle.future.set_result(handle.tensor)
        return call[group.rank][1]

    def fail(self, error: Exception) -> None:
        """End the last operation with an error."""
        for _, handle in self._calls[-1].values():
            handle.future.set_exception(error)


class Group:
    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.issued = 0
        self.closed = False

    def empty(self, shape: int, dtype: Any) -> Any:
        return np.empty(shape, dtype)

    def all_reduce(self, tensor: Any, op: ReduceOp = ReduceOp.SUM, *, async_op: bool = False) -> Handle:
        if self.closed:
            raise GroupClosed("the group is closed")
        assert op is ReduceOp.AVG and async_op
        return self.world.issue(self, "all_reduce", tensor)

    def broadcast(self, tensor: Any, src: int = 0, *, async_op: bool = False) -> Handle:
        assert src == 0 and async_op
        return self.world.issue(self, "broadcast", tensor)


SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((3, 4), np.float32),
    ((), np.float32),
    ((0, 5), np.float64),
    ((7,), np.float64),
    ((2, 2, 2), np.float32),
    ((5,), ml_dtypes.bfloat16),
    ((30,), np.float32),
    ((3,), np.complex64),
]


def values(rank: int, step: int = 0) -> list[Array]:
    """Small integers, so that averages over 1, 2 and 4 ranks are exact, also as bfloat16."""
    rng = np.random.default_rng([rank, step])
    return [rng.integers(-9, 9, shape).astype(dtype) for shape, dtype in SHAPES]


def same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


async def start(world: World, arrays: list[list[Array]], cap: float = TINY_CAP) -> list[GradientSync]:
    syncs = [GradientSync(group, mine, cap) for group, mine in zip(world.groups, arrays, strict=True)]
    await asyncio.gather(*(sync.synced() for sync in syncs))
    return syncs


@given(size=st.sampled_from([1, 2, 4]), seed=st.integers(0, 2**32), cap=st.sampled_from([TINY_CAP, 1e-9, 25]))
@settings(max_examples=60, deadline=None)
def test_averages_whatever_the_order_of_gradients(size: int, seed: int, cap: float) -> None:
    async def main() -> None:
        order = random.Random(seed)
        world = World(size)
        arrays = [values(rank) for rank in range(size)]
        syncs = await start(world, arrays, cap)
        for mine in arrays:
            same(mine, values(0))
        for step in (1, 2, 3):
            grads = [values(rank, step) for rank in range(size)]
            todo = [(rank, index) for rank in range(size) for index in range(len(SHAPES))]
            order.shuffle(todo)
            for rank, index in todo:
                syncs[rank].ready(index, grads[rank][index])
            for rank in range(size):
                averages = await syncs[rank].finish()
                same(
                    averages,
                    [(sum(column) / size).astype(column[0].dtype) for column in zip(*grads, strict=True)],
                )

    asyncio.run(main())


async def test_a_full_bucket_starts_at_once_and_in_order() -> None:
    world = World(1)
    arrays = [np.zeros(16, np.float32) for _ in range(3)]  # one a bucket
    (sync,) = await start(world, [arrays])
    assert [[slot.index for slot in bucket.slots] for bucket in sync.buckets] == [[2], [1], [0]]
    world.log.clear()
    sync.ready(1, arrays[1])
    assert not world.log  # waits for bucket 2, whatever was ready first
    sync.ready(2, arrays[2])
    assert len(world.log) == 2
    sync.ready(0, arrays[0])
    assert len(world.log) == 3
    await sync.finish()


async def test_initial_values_travel_in_few_messages() -> None:
    world = World(2)
    arrays = [[np.full(5, 10 * rank + i, np.float32) for i in range(20)] for rank in range(2)]
    first, second = (GradientSync(group, mine) for group, mine in zip(world.groups, arrays, strict=True))
    assert world.log == ["broadcast float32[100]"]
    assert arrays[1][3][0] == 13  # not before it is awaited
    assert await second is second
    assert await first is first
    same(arrays[1], arrays[0])
    arrays[1][3][:] = 99
    await second.synced()  # once more changes nothing
    assert arrays[1][3][0] == 99


async def test_strided_arrays_and_gradients() -> None:
    world = World(2)
    arrays = [[(np.arange(12.0) + 100 * rank).reshape(3, 4).T] for rank in range(2)]
    syncs = await start(world, arrays)
    same(arrays[1], arrays[0])
    grads = [np.arange(24.0).reshape(4, 6)[:, ::2] * (rank + 1) for rank in range(2)]
    for sync, grad in zip(syncs, grads, strict=True):
        sync.ready(0, grad)
    for sync in syncs:
        np.testing.assert_array_equal((await sync.finish())[0], grads[0] * 1.5)


async def test_bucket_memory_is_reused() -> None:
    (sync,) = await start(World(1), [[np.zeros(4)]])
    sync.ready(0, np.ones(4))
    (first,) = await sync.finish()
    sync.ready(0, np.full(4, 2.0))
    (second,) = await sync.finish()
    assert first is second and first[0] == 2


async def test_the_gradient_is_yours_again_at_once() -> None:
    (sync,) = await start(World(1), [[np.zeros(4)]])
    grad = np.ones(4)
    sync.ready(0, grad)
    grad[:] = 7
    assert (await sync.finish())[0].tolist() == [1, 1, 1, 1]


async def test_no_arrays_at_all() -> None:
    (sync,) = await start(World(1), [[]])
    assert await sync.finish() == []


@pytest.mark.parametrize(
    ("index", "grad", "match"),
    [
        (0, np.zeros((4, 3), np.float32), r"gradient 0 is float32\[4, 3\], its array is float32\[3, 4\]"),
        (0, np.zeros((3, 4)), r"gradient 0 is float64\[3, 4\]"),
        (0, 1.5, r"gradient 0 is float64\[\], its array is float32"),
        (8, np.zeros(1), "index 8 names none of the 8 arrays"),
        (-1, np.zeros(1), "index -1 names none"),
    ],
)
async def test_a_gradient_that_does_not_fit(index: int, grad: Any, match: str) -> None:
    (sync,) = await start(World(1), [values(0)])
    with pytest.raises(UsageError, match=match):
        sync.ready(index, grad)


async def test_twice_and_never() -> None:
    (sync,) = await start(World(1), [[np.zeros(2), np.zeros(3), np.zeros(4)]])
    sync.ready(1, np.zeros(3))
    with pytest.raises(UsageError, match="gradient 1 is ready for the second time"):
        sync.ready(1, np.zeros(3))
    with pytest.raises(UsageError, match="2 of 3 gradients are not ready: 0, 2"):
        await sync.finish()
    sync.ready(0, np.ones(2))
    sync.ready(2, np.zeros(4))
    assert (await sync.finish())[0].tolist() == [1, 1]


async def test_before_the_initial_values_came() -> None:
    sync = GradientSync(World(1).groups[0], [np.zeros(2)])
    with pytest.raises(UsageError, match=r"Write `sync = await GradientSync"):
        sync.ready(0, np.zeros(2))
    await sync


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (np.zeros((2, 2)), "arrays is a single array"),
        ([np.zeros(2), np.zeros(2, np.int32)], "AVG of int32"),
        ([np.zeros(2), [1.0]], r"arrays\[1\] must be an array or tensor"),
        ([np.broadcast_to(np.zeros(1), 3)], r"arrays\[0\] is read-only"),
    ],
)
def test_arrays_that_cannot_be_averaged(arrays: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        GradientSync(World(1).groups[0], arrays)


@pytest.mark.parametrize("cap", [0, -1, float("nan")])
def test_a_bucket_needs_a_size(cap: float) -> None:
    with pytest.raises(UsageError, match="bucket_cap_mb must be"):
        GradientSync(World(1).groups[0], [], bucket_cap_mb=cap)


async def test_cancelling_finish_ends_only_the_wait() -> None:
    world = World(2)
    first, second = await start(world, [[np.zeros(2)], [np.zeros(2)]])
    first.ready(0, np.array([2.0, 4.0]))
    waiting = asyncio.create_task(first.finish())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    second.ready(0, np.array([4.0, 0.0]))
    assert (await first.finish())[0].tolist() == [3, 2]
    assert (await second.finish())[0].tolist() == [3, 2]


async def test_a_broken_group_is_reported() -> None:
    world = World(2)
    first, _ = await start(world, [[np.zeros(2)], [np.zeros(2)]])
    first.ready(0, np.zeros(2))
    world.fail(PeerLost([1], "process 7 exited"))
    with pytest.raises(PeerLost, match="rank 1"):
        await first.finish()


async def test_a_closed_group_is_reported_by_ready() -> None:
    world = World(1)
    (sync,) = await start(world, [[np.zeros(2)]])
    world.groups[0].closed = True
    with pytest.raises(GroupClosed):
        sync.ready(0, np.zeros(2))


async def test_torch_in_torch_out() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    world = World(2)
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    syncs = [GradientSync(group, m.parameters()) for group, m in zip(world.groups, models, strict=True)]
    for sync in syncs:
        await sync
    assert torch.equal(models[0].weight, models[1].weight)
    for rank, (sync, model) in enumerate(zip(syncs, models, strict=True)):
        (model(torch.ones(3)).sum() * (rank + 1)).backward()
        for index, parameter in enumerate(model.parameters()):
            sync.ready(index, parameter.grad)
    averages = await syncs[0].finish()
    assert all(isinstance(average, torch.Tensor) for average in averages)
    assert torch.equal(averages[0], models[0].weight.grad * 1.5)
