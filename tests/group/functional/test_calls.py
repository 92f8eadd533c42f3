"""torch's module-level calls: its signatures, its global ranks, its lists."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.cluster import run_cluster


def mine(rank: int, count: int = 4) -> Any:
    """Distinct values for a rank and each element."""
    return np.arange(count, dtype=np.int64) + 100 * (rank + 1)


async def test_collectives_find_the_default_group() -> None:
    async def main(pg: ProcessGroup) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        assert (rank, size, dist.get_backend()) == (pg.rank, 4, "host")
        assert dist.is_initialized()
        total: Any = sum(mine(r) for r in range(4))
        tensor = mine(rank)
        result: Any = await dist.all_reduce(tensor)
        assert result is tensor
        assert np.array_equal(tensor, total)
        tensor = mine(rank)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        result = await work
        assert result is tensor
        assert np.array_equal(tensor, mine(3))
        tensor = mine(rank)
        await dist.broadcast(tensor, 2)
        assert np.array_equal(tensor, mine(2))
        tensor = mine(rank)
        await dist.reduce(tensor, 1)
        assert np.array_equal(tensor, total if rank == 1 else mine(rank))
        rows = [np.zeros(4, np.int64) for _ in range(4)]
        assert await dist.all_gather(rows, mine(rank)) is rows
        assert np.array_equal(rows, [mine(r) for r in range(4)])
        output = np.zeros(16, np.int64)
        await dist.all_gather_into_tensor(output, mine(rank))
        assert np.array_equal(output, np.concatenate(rows))
        part = np.zeros(1, np.int64)
        await dist.reduce_scatter_tensor(part, mine(rank))
        assert part[0] == total[rank]
        part = np.zeros(4, np.int64)
        await dist.reduce_scatter(part, [mine(rank) + r for r in range(4)])
        assert np.array_equal(part, total + 4 * rank)
        assert await dist.barrier() is None

    await run_cluster(4, main)


async def test_ranks_are_global_and_group_src_is_the_groups() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await dist.new_group([1, 3])
        if pg.rank not in (1, 3):
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            return
        assert isinstance(group, ProcessGroup)
        assert dist.get_process_group_ranks(group) == [1, 3]
        assert dist.get_rank(group) == dist.get_group_rank(group, pg.rank) == (0 if pg.rank == 1 else 1)
        assert dist.get_global_rank(group, 1) == 3
        assert dist.get_world_size(group) == 2
        sources: list[dict[str, Any]] = [{"src": 3}, {"group_src": 1}]
        for arguments in sources:
            tensor = mine(pg.rank)
            await dist.broadcast(tensor, group=group, **arguments)
            assert np.array_equal(tensor, mine(3))
        targets: list[dict[str, Any]] = [{"dst": 1}, {"group_dst": 0}]
        for target in targets:
            tensor = mine(pg.rank)
            await dist.reduce(tensor, group=group, **target)
            assert np.array_equal(tensor, mine(1) + mine(3) if pg.rank == 1 else mine(3))
        refused: list[dict[str, Any]] = [{"src": 0}, {"src": 3, "group_src": 1}, {}, {"group_src": 2}]
        for bad in refused:
            with pytest.raises(dist.UsageError):
                dist.broadcast(mine(pg.rank), group=group, **bad)
        with pytest.raises(dist.UsageError, match="global rank 0 is not a member of group"):
            dist.get_group_rank(group, 0)
        with pytest.raises(
            dist.UsageError, match="group_rank=2 is not a rank of this group, which has ranks 0 to 1"
        ):
            dist.get_global_rank(group, 2)
        await group.barrier()

    await run_cluster(4, main)


async def test_send_and_recv_name_global_ranks_also_in_a_subgroup() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await dist.new_group([3, 1])
        if not isinstance(group, ProcessGroup):
            return
        if pg.rank == 3:
            await dist.send(mine(3), 1, group)
            await dist.send(mine(4), group=group, group_dst=0, tag=5)
            work = dist.isend(mine(5), 1, group, tag=6)
            await work
        else:
            tensor = np.zeros(4, np.int64)
            assert await dist.recv(tensor, group=group) == 3  # from anybody
            assert np.array_equal(tensor, mine(3))
            assert await dist.recv(tensor, 3, group, tag=5) == 3
            assert np.array_equal(tensor, mine(4))
            later = dist.irecv(tensor, group=group, group_src=1, tag=6)
            assert await later == 3
            assert np.array_equal(tensor, mine(5))

    await run_cluster(4, main)


async def test_isend_and_irecv_may_be_dropped_without_a_warning() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.zeros(4, np.int64)
        if pg.rank == 0:
            dist.isend(mine(0), 1)
        else:
            dist.irecv(tensor, 0)
        gc.collect()
        await pg.drain()
        assert pg.rank == 0 or np.array_equal(tensor, mine(0))

    await run_cluster(2, main)


NON_MEMBER = dist.GroupMember.NON_GROUP_MEMBER
SKIPPED: list[tuple[str, Callable[[], Any]]] = [
    ("all_reduce", lambda: dist.all_reduce(mine(0), group=NON_MEMBER)),
    ("broadcast", lambda: dist.broadcast(mine(0), 0, group=NON_MEMBER)),
    ("reduce", lambda: dist.reduce(mine(0), 0, group=NON_MEMBER)),
    ("all_gather", lambda: dist.all_gather([], mine(0), group=NON_MEMBER)),
    ("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(mine(0), mine(0), group=NON_MEMBER)),
    ("reduce_scatter", lambda: dist.reduce_scatter(mine(0), [], group=NON_MEMBER)),
    ("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(mine(0), mine(0), group=NON_MEMBER)),
    ("barrier", lambda: dist.barrier(NON_MEMBER)),
    ("send", lambda: dist.send(mine(0), 1, NON_MEMBER)),
    ("isend", lambda: dist.isend(mine(0), 1, NON_MEMBER)),
    ("recv", lambda: dist.recv(mine(0), 1, NON_MEMBER)),
    ("irecv", lambda: dist.irecv(mine(0), 1, NON_MEMBER)),
]


@pytest.mark.parametrize(("name", "call"), SKIPPED, ids=[case[0] for case in SKIPPED])
async def test_non_member_is_warned_where_it_called_and_gets_none(name: str, call: Callable[[], Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = call()
    [warning] = caught
    assert str(warning.message) == f"{name}: this process is not a member of the group; nothing is done"
    assert warning.filename == __file__
    assert await handle is None
    assert await handle is None
    assert await handle.wait(3) is None
    assert handle.is_completed() and handle.is_success()


async def test_non_member_asks_for_facts() -> None:
    assert dist.get_rank(NON_MEMBER) == dist.get_world_size(NON_MEMBER) == -1
    assert repr(NON_MEMBER) == "GroupMember.NON_GROUP_MEMBER"
    with pytest.warns(UserWarning, match="not a member"):
        assert dist.get_process_group_ranks(NON_MEMBER) == []
    with (
        pytest.warns(UserWarning, match="not a member"),
        pytest.raises(dist.UsageError, match="not a member"),
    ):
        dist.get_backend(NON_MEMBER)


async def test_without_a_group_every_call_says_what_to_write() -> None:
    for call in (
        lambda: dist.barrier(),
        lambda: dist.all_reduce(mine(0)),
        dist.get_rank,
        dist.get_world_size,
    ):
        with pytest.raises(dist.UsageError, match="init_process_group"):
            call()
    with pytest.raises(dist.UsageError, match="group must be a ProcessGroup or None, got 'world'"):
        dist.barrier(cast("Any", "world"))


async def test_new_group_takes_its_number_in_the_call_and_checks_the_backend() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match="backend='nccl'"):
            _ = dist.new_group([0], backend="nccl")
        first, second = dist.new_group([0, 1], backend="gloo"), dist.new_group(None, timeout=7)
        second_group, first_group = await second, await first
        assert isinstance(second_group, ProcessGroup)
        assert (second_group.size, second_group.timeout) == (3, 7)
        if pg.rank == 2:
            assert first_group is NON_MEMBER
        else:
            assert isinstance(first_group, ProcessGroup)
            assert first_group.size == 2
        await second_group.barrier()

    await run_cluster(3, main)


# torch.distributed 2.x, as its documentation lists them. Parameters that have no meaning here are absent.
TORCH = {
    "all_reduce": ["tensor", "op", "group", "async_op"],
    "broadcast": ["tensor", "src", "group", "async_op", "group_src"],
    "reduce": ["tensor", "dst", "op", "group", "async_op", "group_dst"],
    "all_gather": ["tensor_list", "tensor", "group", "async_op"],
    "all_gather_into_tensor": ["output_tensor", "input_tensor", "group", "async_op"],
    "reduce_scatter": ["output", "input_list", "op", "group", "async_op"],
    "reduce_scatter_tensor": ["output", "input", "op", "group", "async_op"],
    "barrier": ["group", "async_op"],
    "send": ["tensor", "dst", "group", "tag", "group_dst"],
    "recv": ["tensor", "src", "group", "tag", "group_src"],
    "isend": ["tensor", "dst", "group", "tag", "group_dst"],
    "irecv": ["tensor", "src", "group", "tag", "group_src"],
    "get_rank": ["group"],
    "get_world_size": ["group"],
    "get_backend": ["group"],
    "get_group_rank": ["group", "global_rank"],
    "get_global_rank": ["group", "group_rank"],
    "new_group": [
        "ranks",
        "timeout",
        "backend",
        "pg_options",
        "use_local_synchronization",
        "group_desc",
        "device_id",
    ],
}


@pytest.mark.parametrize("name", sorted(TORCH))
def test_signatures_are_torchs(name: str) -> None:
    parameters = list(inspect.signature(getattr(dist, name)).parameters)
    assert parameters[: len(TORCH[name])] == TORCH[name]
