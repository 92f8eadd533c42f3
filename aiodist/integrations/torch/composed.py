"""Calls of torch's that are several of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from aiodist.base.errors import AiodistError, UsageError
from aiodist.base.types import ReduceOp
from aiodist.group.process_group import ProcessGroup
from aiodist.group.shapes import all_gather_into_tensor

_TAG = 2**31 - 3  # of objects: apart from the tags of what programs send as tensors


async def monitored_barrier(pg: ProcessGroup, number: int, limit: float, all_ranks: bool) -> None:
    """A barrier in which rank 0 hears from each rank by itself; it leaves the group whole where one is late.

    Args:
        pg: the group.
        number: of this barrier in the group, from 1: what comes late of one before is passed over.
        limit: seconds.
        all_ranks: name all that are late, not only the first.

    Raises:
        RuntimeError: ranks are late; rank 0 names them, the others name rank 0, in torch's words.
    """
    if pg.rank:
        try:
            async with asyncio.timeout(limit):
                await pg.send_object([number, True], 0, _TAG)
                ok = await _answer_of(pg, 0, number)
        except (TimeoutError, AiodistError):
            ok = False
        if not ok:
            raise RuntimeError(
                f"Rank {pg.rank} successfully reached monitoredBarrier, but received errors while waiting "
                "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
            )
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    late: list[int] = []
    here: list[int] = []
    for rank in range(1, pg.size):
        if not late and loop.time() >= until:
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {limit * 1000:.0f} ms")
        try:
            await asyncio.wait_for(_answer_of(pg, rank, number), max(0.0, until - loop.time()))
            here.append(rank)
        except (TimeoutError, AiodistError):
            late.append(rank)
            if not all_ranks:
                break
    for rank in here:
        await pg.send_object([number, not late], rank, _TAG)
    if late:
        named = f"Rank {late[0]}" if len(late) == 1 else f"Ranks {', '.join(map(str, late))}"
        raise RuntimeError(f"[Rank 0]: {named} failed to pass monitoredBarrier in {limit * 1000:.0f} ms")


async def _answer_of(pg: ProcessGroup, rank: int, number: int) -> bool:
    """The word of a rank on this barrier: whether all is well."""
    while True:
        of, ok = await pg.recv_object(rank, _TAG)
        if of >= number:
            return bool(ok)


async def sparse_all_reduce(pg: ProcessGroup, tensor: Any, op: Any) -> Any:
    """Sum sparse tensors: every rank gets all indices and values, and adds up what lies at one index.

    Args:
        pg: the group.
        tensor: of layout sparse_coo, of one shape, dtype and number of sparse dimensions on all ranks.
        op: SUM.

    Returns:
        → the sum, coalesced.

    Raises:
        CollectiveMismatch: ranks have tensors of other shapes, dtypes or numbers of sparse dimensions.
    """
    if op is not ReduceOp.SUM:
        raise UsageError("sparse tensors can be summed, and nothing else", hint="Use ReduceOp.SUM")
    mine = tensor.detach().coalesce()
    counts = torch.zeros(pg.size, dtype=torch.int64)
    kind = f"{str(mine.dtype).removeprefix('torch.')}{list(mine.shape)}"
    form = f"for sparse {kind}, {mine.sparse_dim()} of {mine.ndim} dimensions sparse"
    await all_gather_into_tensor(pg, counts, torch.tensor([mine._nnz()]), True, detail=form)
    sizes = counts.tolist()
    total = sum(sizes)
    indices = torch.empty((total, mine.sparse_dim()), dtype=torch.int64)
    values = torch.empty((total, *mine.values().shape[1:]), dtype=mine.dtype)
    await pg.all_gather(mine.indices().t().contiguous(), indices, sizes=sizes)
    await pg.all_gather(mine.values().contiguous(), values, sizes=sizes)
    return await asyncio.to_thread(_joined, indices, values, mine.shape)


def _joined(indices: Any, values: Any, shape: Any) -> Any:
    return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False).coalesce()
