"""torch.distributed's calls on aiodist and on gloo, in one process, with the same tensors: equal results.

`aiodist run --nproc-per-node N torch_calls_job.py`; each rank prints "same" at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as c10d

warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has new names, and warns of the old ones

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
COUNTS = (0, 1, 7, 1000, 40_000)


def tensor(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small distinct values of a rank, which add up exactly in every dtype."""
    values = torch.arange(count) % 5 + rank + 1
    return values.to(dtype)


def same(call: Callable[[Any], list[torch.Tensor]], groups: list[Any]) -> None:
    """What a call gives is bitwise the same on both groups."""
    ours, theirs = (call(group) for group in groups)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (one, other)


def check_collectives(groups: list[Any], rank: int, size: int) -> None:
    """All collectives of tensors."""
    for dtype in (*FLOATS, *INTEGERS):
        for count in COUNTS:
            mine = tensor(rank, count, dtype)

            def all_reduce(op: Any, group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = given.clone()
                c10d.all_reduce(out, op, group)
                return [out]

            ops = [c10d.ReduceOp.SUM, c10d.ReduceOp.MIN, c10d.ReduceOp.MAX, c10d.ReduceOp.PRODUCT]
            if not dtype.is_floating_point:
                ops += [c10d.ReduceOp.BAND, c10d.ReduceOp.BOR, c10d.ReduceOp.BXOR]
            if dtype in (torch.uint8, torch.int8) or dtype.itemsize == 2:
                ops.remove(c10d.ReduceOp.PRODUCT)  # it overflows
            for op in ops:
                same(partial(all_reduce, op), groups)

            def broadcast(group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = given.clone()
                c10d.broadcast(out, size - 1, group)
                return [out]

            same(broadcast, groups)

            def gathered(group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = [torch.zeros_like(given) for _ in range(size)]
                c10d.all_gather(out, given, group)
                flat = given.new_zeros(given.numel() * size)
                c10d.all_gather_into_tensor(flat, given, group)
                return [*out, flat]

            same(gathered, groups)

            def scattered(group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = torch.zeros_like(given)
                parts = [given + n for n in range(size)] if rank == 1 else None
                c10d.scatter(out, parts, 1, group)
                return [out]

            same(scattered, groups)

            def reduced(group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = given.clone()
                c10d.reduce(out, 0, c10d.ReduceOp.SUM, group)
                return [out] if rank == 0 else []  # elsewhere gloo leaves what it likes

            same(reduced, groups)

            def to_one(group: Any, given: torch.Tensor = mine) -> list[torch.Tensor]:
                out = [torch.zeros_like(given) for _ in range(size)] if rank == 1 else None
                c10d.gather(given, out, 1, group)
                return out or []

            same(to_one, groups)

            def exchanged(group: Any, dtype: torch.dtype = dtype, count: int = count) -> list[torch.Tensor]:
                given = tensor(rank, count * size, dtype)
                out = torch.zeros_like(given)
                c10d.all_to_all_single(out, given, group=group)
                return [out]

            same(exchanged, groups)

            def dealt(group: Any, dtype: torch.dtype = dtype, count: int = count) -> list[torch.Tensor]:
                out = torch.zeros(count, dtype=dtype)
                c10d.reduce_scatter_tensor(out, tensor(rank, count * size, dtype), group=group)
                return [out]

            same(dealt, groups)


def check_forms(groups: list[Any], rank: int, size: int) -> None:
    """The calls of a group itself, with a root, an op and a timeout instead of torch's Options."""
    most, patience = c10d.ReduceOp.MAX, timedelta(seconds=50)
    last = size - 1

    def called(*tensors: torch.Tensor, name: str, how: tuple[Any, ...], named: dict[str, Any]) -> Any:
        def call(group: Any) -> list[torch.Tensor]:
            out = [one.clone() for one in tensors]
            getattr(group, name)(out[0], *how, **named).wait()
            return out

        return call

    mine = tensor(rank, 5, torch.float32)
    for name, how, named in (
        ("allreduce", (), {}),
        ("allreduce", (most,), {}),
        ("allreduce", (most, patience), {}),
        ("allreduce", (), {"op": most, "timeout": patience}),
        ("broadcast", (last,), {}),
        ("broadcast", (), {"root": last, "timeout": patience}),
        ("reduce_scatter", ([mine + peer for peer in range(size)],), {}),
        ("reduce_scatter", ([mine + peer for peer in range(size)], most, patience), {}),
        ("scatter", ([mine + peer for peer in range(size)] if rank == last else [], last), {}),
        ("scatter", ([mine] * size if rank == 0 else [],), {"root": 0, "timeout": patience}),
    ):
        same(called(mine, name=name, how=how, named=named), groups)

    def reduced(group: Any) -> list[torch.Tensor]:
        out = mine.clone()
        group.reduce(out, 0, most, patience).wait()
        return [out] if rank == 0 else []

    def gathered(group: Any) -> list[torch.Tensor]:
        everywhere = [torch.zeros_like(mine) for _ in range(size)]
        group.allgather(everywhere, mine, timeout=patience).wait()
        here = [torch.zeros_like(mine) for _ in range(size)] if rank == last else []
        group.gather(here, mine, last).wait()
        return [*everywhere, *here]

    def exchanged(group: Any) -> list[torch.Tensor]:
        outs = [torch.zeros_like(mine) for _ in range(size)]
        group.alltoall(outs, [mine * peer for peer in range(size)]).wait()
        out = torch.zeros(size)
        group.alltoall_base(out, torch.arange(size) + 10.0 * rank, [], [], patience).wait()
        group.barrier(patience).wait()
        group.barrier(timeout=patience).wait()
        return [*outs, out]

    def twice(group: Any) -> list[torch.Tensor]:
        out = torch.arange(6.0) + rank
        group.allreduce_coalesced([out, out, out[1:]]).wait()
        return [out]

    for call in (reduced, gathered, exchanged, twice):
        same(call, groups)


def check_barrier(ours: Any, rank: int, size: int) -> None:
    """A barrier returns when what this rank issued before has ended, but for messages."""
    come = torch.zeros(1)
    message = c10d.irecv(come, (rank - 1) % size, ours)
    given = [torch.full((300_000,), float(number)) for number in range(8)]
    for one in given:
        c10d.all_reduce(one, group=ours, async_op=True)
    c10d.barrier(ours)
    assert [[one.min().item(), one.max().item()] for one in given] == [[size * n] * 2 for n in range(8)]
    c10d.send(torch.full((1,), float(rank)), (rank + 1) % size, ours)
    message.wait()
    assert come.item() == (rank - 1) % size


def check_uneven(ours: Any, rank: int, size: int) -> None:
    """Splits, lists, coalesced calls, which gloo has only in part."""
    sends = [(rank + peer) % 3 for peer in range(size)]
    comes = [(peer + rank) % 3 for peer in range(size)]
    given = torch.arange(sum(sends)) + 100 * rank
    out = torch.zeros(sum(comes), dtype=torch.int64)
    c10d.all_to_all_single(out, given, comes, sends, group=ours)
    starts = [sum((peer + other) % 3 for other in range(rank)) for peer in range(size)]
    expected = [100 * peer + starts[peer] + n for peer in range(size) for n in range(comes[peer])]
    assert out.tolist() == expected, (out, expected)
    with c10d._coalescing_manager(ours, async_ops=True) as manager:
        several = [torch.full((n + 1,), rank + 1.0) for n in range(3)]
        for one in several:
            c10d.all_reduce(one, group=ours)
    manager.wait()
    assert [one.tolist() for one in several] == [[size * (size + 1) / 2] * (n + 1) for n in range(3)]
    inputs = [torch.full((2,), float(rank * 10 + peer)) for peer in range(size)]
    outputs = [torch.zeros(2) for _ in range(size)]
    c10d.all_to_all(outputs, inputs, group=ours)
    assert [one[0].item() for one in outputs] == [peer * 10.0 + rank for peer in range(size)]


def check_sparse(groups: list[Any], rank: int, size: int) -> None:
    """Sums of sparse tensors, of which ranks have different and equal indices."""
    places = torch.tensor([[0, rank + 1, rank + 1], [1, rank, rank]])

    def summed(group: Any) -> list[torch.Tensor]:
        out = torch.sparse_coo_tensor(
            places, torch.tensor([1.0, 2.0, 4.0]) * (rank + 1), (size + 1, size + 1)
        )
        c10d.all_reduce(out, group=group)
        return [out.to_dense()]

    same(summed, groups)


def check_messages(ours: Any, rank: int, size: int) -> None:
    """send, recv, from anybody, and batches of them."""
    after, before = (rank + 1) % size, (rank - 1) % size
    out = torch.zeros(3)
    ops = [
        c10d.P2POp(c10d.isend, torch.full((3,), float(rank)), after, ours),
        c10d.P2POp(c10d.irecv, out, before, ours),
    ]
    for work in c10d.batch_isend_irecv(ops):
        work.wait()
    assert out.tolist() == [float(before)] * 3
    for mine in (torch.full((3,), float(rank)), torch.arange(300_000) + rank):  # gloo refuses such
        came_back = torch.zeros_like(mine)
        ops = [c10d.P2POp(c10d.isend, mine, rank, ours), c10d.P2POp(c10d.irecv, came_back, rank, ours)]
        for work in c10d.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(came_back, mine)
    if rank == 0:
        came = set()
        for _ in range(size - 1):
            come = torch.zeros(1)
            sender = c10d.recv(come, None, ours, tag=7)
            assert come.item() == sender
            came.add(sender)
        assert came == set(range(1, size))
    else:
        c10d.send(torch.tensor([float(rank)]), 0, ours, tag=7)


def check_scalars(ours: Any, rank: int, size: int) -> None:
    """Tensors without a dimension."""
    one = torch.tensor(rank + 0.5)
    c10d.all_reduce(one, group=ours)
    assert one.item() == sum(range(size)) + size / 2
    parts = [torch.tensor(0) for _ in range(size)]
    c10d.all_gather(parts, torch.tensor(rank), ours)
    assert [part.item() for part in parts] == list(range(size))
    told = torch.tensor(rank)
    c10d.broadcast(told, size - 1, ours)
    assert told.item() == size - 1


def check_objects(ours: Any, rank: int, size: int) -> None:
    """Objects, which torch pickles."""
    found: list[Any] = [None] * size
    c10d.all_gather_object(found, {"rank": rank}, ours)
    assert found == [{"rank": peer} for peer in range(size)]
    told = [None, "x"] if rank else [{"a": 1}, "x"]
    c10d.broadcast_object_list(told, 0, ours)
    assert told == [{"a": 1}, "x"]


def check_training(rank: int) -> None:
    """DDP's weights are the same on all ranks, and its gradients the average."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    step = torch.optim.SGD(ddp.parameters(), 0.1)
    for turn in range(3):
        torch.manual_seed(10 * turn + rank)
        loss = ddp(torch.randn(16, 8)).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
    whole = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least, most = whole.clone(), whole.clone()
    c10d.all_reduce(least, c10d.ReduceOp.MIN)
    c10d.all_reduce(most, c10d.ReduceOp.MAX)
    assert torch.equal(least, most)


def check_futures(ours: Any, rank: int, size: int) -> None:
    """A hook may wait, in a callback, for another operation."""
    given = torch.full((4,), rank + 1.0)

    def again(future: Any) -> Any:
        found = future.value()[0].clone()
        c10d.all_reduce(found, group=ours)
        return found

    future = c10d.all_reduce(given, group=ours, async_op=True).get_future().then(again)
    total = size * (size + 1) / 2
    assert future.wait().tolist() == [total * size] * 4


def main() -> None:
    """Run all checks."""
    c10d.init_process_group("aiodist")
    rank, size = c10d.get_rank(), c10d.get_world_size()
    assert c10d.get_backend() == "aiodist"
    groups = [c10d.group.WORLD, c10d.new_group(backend="gloo")]
    check_collectives(groups, rank, size)
    check_sparse(groups, rank, size)
    check_forms(groups, rank, size)
    some = c10d.new_group([0, size - 1])
    if rank in (0, size - 1):
        pair = torch.tensor([rank + 1])
        c10d.all_reduce(pair, group=some)
        assert pair.item() == size + 1
        c10d.destroy_process_group(some)
    other_way = c10d.new_group(list(range(size))[::-1], sort_ranks=False)
    assert c10d.get_group_rank(other_way, rank) == size - 1 - rank
    first = torch.tensor([float(rank)])
    c10d.broadcast(first, size - 1, other_way)
    assert first.item() == size - 1
    for check in (check_barrier, check_uneven, check_messages, check_scalars, check_objects, check_futures):
        check(groups[0], rank, size)
    check_training(rank)
    c10d.barrier()
    c10d.destroy_process_group()
    c10d.init_process_group("aiodist")
    last = torch.ones(1)
    c10d.all_reduce(last)
    assert last.item() == size
    c10d.destroy_process_group()
    print("same", flush=True)


if __name__ == "__main__":
    main()
