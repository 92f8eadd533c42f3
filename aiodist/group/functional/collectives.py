"""torch's collectives of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.base.timeouts import Timeout
from aiodist.base.types import ReduceOp
from aiodist.group import shapes
from aiodist.group.functional.handles import Group, Handle, Skipped, member, rank_in, root_in
from aiodist.group.requests import Op, given


def all_reduce(tensor: Any, op: Op = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Handle:
    """Reduce over all ranks, in place. See `ProcessGroup.all_reduce`."""
    pg = member(group, "all_reduce")
    return Skipped() if pg is None else pg.all_reduce(tensor, op, async_op=async_op)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Handle:
    """Copy the source's tensor to all ranks, in place. See `ProcessGroup.broadcast`.

    Args:
        src: global rank that has the data; or
        group_src: its rank in the group.
    """
    pg = member(group, "broadcast")
    if pg is None:
        return Skipped()
    return pg.broadcast(tensor, rank_in(pg, src, group_src, "src"), async_op=async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Handle:
    """Reduce over all ranks to one. See `ProcessGroup.reduce`; other ranks' tensors stay as they were.

    Args:
        dst: global rank that gets the result; or
        group_dst: its rank in the group.
    """
    pg = member(group, "reduce")
    if pg is None:
        return Skipped()
    return pg.reduce(tensor, rank_in(pg, dst, group_dst, "dst"), op, async_op=async_op)


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group = None, async_op: bool = False
) -> Handle:
    """Gather every rank's tensor into a list, in place. → the list. See `ProcessGroup.all_gather`.

    Args:
        tensor_list: one tensor for each rank, of the shape and dtype of `tensor`; overwritten. None may share
            memory with another.
        tensor: same shape and dtype on all ranks; read.
    """
    pg = member(group, "all_gather")
    return Skipped() if pg is None else shapes.all_gather(pg, tensor_list, tensor, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Handle:
    """Gather every rank's tensor into one, stacked or concatenated along the first axis, as its shape says.

    Args:
        output_tensor: of shape `(size, *input_tensor.shape)`, or with the first axis `size` times as long as
            the input's; overwritten. → this.
        input_tensor: same shape and dtype on all ranks; read.
    """
    pg = member(group, "all_gather_into_tensor")
    return (
        Skipped() if pg is None else shapes.all_gather_into_tensor(pg, output_tensor, input_tensor, async_op)
    )


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Handle:
    """Reduce a list of tensors over all ranks; rank r gets the r-th. See `ProcessGroup.reduce_scatter`.

    Args:
        output: overwritten with this rank's part. → this.
        input_list: one tensor for each rank, of the shape and dtype of `output`; read.
        op: how elements combine.
    """
    pg = member(group, "reduce_scatter")
    return Skipped() if pg is None else shapes.reduce_scatter(pg, output, input_list, op, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Op = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Handle:
    """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis.

    Args:
        output: overwritten with this rank's part. → this.
        input: of shape `(size, *output.shape)`, or with the first axis `size` times as long as the
            output's; read.
        op: how elements combine.
    """
    pg = member(group, "reduce_scatter_tensor")
    return Skipped() if pg is None else shapes.reduce_scatter_tensor(pg, output, input, op, async_op)


def barrier(
    group: Group = None, async_op: bool = False, device_ids: Any = None, timeout: Timeout = None
) -> Handle:
    """Return when all ranks have called it.

    Args:
        device_ids: for torch's sake, and not used.
        timeout: seconds, or a timedelta; None takes the group's.
    """
    pg = member(group, "barrier")
    return Skipped() if pg is None else pg.barrier(timeout=timeout, async_op=async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Handle:
    """Gather every rank's tensor into a list on the destination, in place. → the list there, None elsewhere.

    Args:
        tensor: same shape and dtype on all ranks; read.
        gather_list: on the destination, one tensor for each rank, shaped as `tensor`; overwritten. None
            elsewhere.
        dst: global rank of the destination; or
        group_dst: its rank in the group. The group's rank 0 where neither is given.
    """
    pg = member(group, "gather")
    if pg is None:
        return Skipped()
    return shapes.gather(pg, tensor, gather_list, root_in(pg, dst, group_dst, "dst"), async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Handle:
    """Distribute the source's list over all ranks, in place. → `tensor`.

    Args:
        tensor: same shape and dtype on all ranks; overwritten.
        scatter_list: on the source, one tensor for each rank, shaped as `tensor`; read. None elsewhere.
        src: global rank of the source; or
        group_src: its rank in the group. The group's rank 0 where neither is given.
    """
    pg = member(group, "scatter")
    if pg is None:
        return Skipped()
    return shapes.scatter(pg, tensor, scatter_list, root_in(pg, src, group_src, "src"), async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Group = None,
    async_op: bool = False,
) -> Handle:
    """Send the j-th input to rank j; get the i-th output from rank i. → the outputs.

    Args:
        output_tensor_list: one tensor for each rank, of any shapes; overwritten.
        input_tensor_list: one tensor for each rank; read. What one sends and the other expects must have
            the same number of elements. All tensors have one dtype.
    """
    pg = member(group, "all_to_all")
    return Skipped() if pg is None else shapes.all_to_all(pg, output_tensor_list, input_tensor_list, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Handle:
    """Send parts of one tensor's first axis to all ranks. → `output`. See `ProcessGroup.all_to_all`.

    Args:
        output: overwritten with the parts that come, in rank order.
        input: read. Same dtype and trailing shape on all ranks.
        output_split_sizes: rows that come from each rank; None, or an empty list: equal parts.
        input_split_sizes: rows that go to each rank, likewise.
    """
    pg = member(group, "all_to_all_single")
    if pg is None:
        return Skipped()
    ins = input_split_sizes if given(input_split_sizes) else None
    outs = output_split_sizes if given(output_split_sizes) else None
    return pg.all_to_all(input, output, ins, outs, async_op=async_op)


def monitored_barrier(group: Group = None, timeout: Timeout = None, wait_all_ranks: bool = False) -> Handle:
    """Return when all ranks have called it. Like all operations it names the missing ranks at its timeout."""
    pg = member(group, "monitored_barrier")
    return Skipped() if pg is None else pg.monitored_barrier(timeout, wait_all_ranks)


all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor
