"""torch's other shapes of the same collectives: lists of tensors, concatenated outputs, global senders.

The group's methods speak of arrays with a rank axis. What torch scripts write beside that is checked here
and issued as the same operation; lists travel as one staged buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.backends.base import Array
from aiodist.errors import UsageError
from aiodist.group import arguments as check
from aiodist.group.process_group import ProcessGroup
from aiodist.types import Kind, ReduceOp, check_reduction
from aiodist.work import Work


def all_gather(pg: ProcessGroup, tensors: Sequence[Any], tensor: Any, async_op: bool) -> Work[Any]:
    """Every rank's tensor into a list of tensors. → the list."""
    source = check.readable(tensor, "tensor")
    arrays = [
        check.writable(t, f"tensor_list[{i}]") for i, t in enumerate(_listed(tensors, pg.size, "tensor_list"))
    ]
    for index, array in enumerate(arrays):
        _alike(array, source, f"tensor_list[{index}]")
        check.apart(f"tensor_list[{index}]", array, "tensor", source)
        for other in range(index):
            check.apart(f"tensor_list[{index}]", array, f"tensor_list[{other}]", arrays[other])
    return pg._issue(Kind.all_gather, source, source, arrays, tensors, None, async_op)


def all_gather_into_tensor(pg: ProcessGroup, output: Any, tensor: Any, async_op: bool) -> Work[Any]:
    """Every rank's tensor into one, stacked or concatenated along the first axis. → `output`."""
    source = check.readable(tensor, "input_tensor")
    target = check.writable(output, "output_tensor")
    stacked = (pg.size, *source.shape)
    joined = (pg.size * source.shape[0], *source.shape[1:]) if source.ndim else (pg.size,)
    if target.shape not in (stacked, joined):
        raise UsageError(f"output_tensor has shape {target.shape}, expected {joined} or {stacked}")
    check.same_dtype("output_tensor", target, source)
    check.apart("output_tensor", target, "input_tensor", source)
    rows = target.reshape(stacked)  # splitting the first axis never copies
    return pg._issue(Kind.all_gather, source, source, rows, output, None, async_op)


def reduce_scatter(
    pg: ProcessGroup, output: Any, tensors: Sequence[Any], op: ReduceOp, async_op: bool
) -> Work[Any]:
    """Reduce a list over all ranks; rank r gets the r-th. → `output`."""
    target = check.writable(output, "output")
    arrays = [
        check.readable(t, f"input_list[{i}]") for i, t in enumerate(_listed(tensors, pg.size, "input_list"))
    ]
    for index, array in enumerate(arrays):
        _alike(array, target, f"input_list[{index}]")
        check.apart("output", target, f"input_list[{index}]", array)
    check_reduction(op, target.dtype)
    agreed = (target.dtype, (pg.size, *target.shape))
    return pg._issue(Kind.reduce_scatter, agreed, arrays, target, output, None, async_op, reduce=op)


def reduce_scatter_tensor(
    pg: ProcessGroup, output: Any, tensor: Any, op: ReduceOp, async_op: bool
) -> Work[Any]:
    """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis. → `output`."""
    source = check.readable(tensor, "input")
    target = check.writable(output, "output")
    stacked = (pg.size, *target.shape)
    joined = (pg.size * target.shape[0], *target.shape[1:]) if target.ndim else (pg.size,)
    if source.shape not in (stacked, joined):
        raise UsageError(f"input has shape {source.shape}, expected {joined} or {stacked}")
    check.same_dtype("output", target, source)
    check.apart("output", target, "input", source)
    check_reduction(op, source.dtype)
    return pg._issue(Kind.reduce_scatter, source, source, target, output, None, async_op, reduce=op)


def recv(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, held: bool) -> Work[int]:
    """Receive from a group rank or anybody. → the sender's global rank."""
    peer = -1 if src is None else check.peer_rank(src, pg.rank, pg.size, "src")
    target = check.writable(tensor, "tensor")
    number = check.message_tag(tag)
    return pg._issue(
        Kind.recv, target, None, target, None, None, held, peer=peer, tag=number, senders=pg.ranks
    )


def _listed(tensors: Sequence[Any], size: int, name: str) -> list[Any]:
    if not isinstance(tensors, list | tuple):
        raise UsageError(f"{name} must be a list of {size} tensors, got {type(tensors).__name__}")
    if len(tensors) != size:
        raise UsageError(f"{name} has {len(tensors)} tensors, the group has {size} ranks")
    return list(tensors)


def _alike(array: Array, like: Array, name: str) -> None:
    if array.shape != like.shape or array.dtype != like.dtype:
        raise UsageError(
            f"{name} is {array.dtype.name}{list(array.shape)}, expected {like.dtype.name}{list(like.shape)}"
        )
