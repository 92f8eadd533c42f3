"""torch's other shapes of the same collectives: lists of tensors, concatenated outputs, global senders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.backends.work import Work
from aiodist.base.types import Kind
from aiodist.group import arguments as check
from aiodist.group.places import place_of
from aiodist.group.process_group import ProcessGroup
from aiodist.group.requests import PLAIN, Names, Op, exchange_lists, receiving, request

_ALL_GATHER = Names("tensor", "tensor_list", listed=True)
_ALL_GATHER_INTO = Names("input_tensor", "output_tensor")
_REDUCE_SCATTER = Names("input_list", "output", listed=True)
_REDUCE_SCATTER_TENSOR = Names("input", "output")
_GATHER = Names("tensor", "gather_list", listed=True)
_SCATTER = Names("scatter_list", "tensor", listed=True)


def _issue(
    pg: ProcessGroup,
    kind: Kind,
    tensor: Any,
    out: Any,
    names: Names,
    async_op: bool,
    timeout: float | None,
    **more: Any,
) -> Work[Any]:
    return pg._core.issue(request(kind, pg._core.roster, tensor, out, names=names, **more), timeout, async_op)


def all_reduce(
    pg: ProcessGroup, tensor: Any, op: Op, async_op: bool, timeout: float | None = None, detail: str = ""
) -> Work[Any]:
    """Reduce over all ranks, in place; a `detail` is compared, too. → `tensor`."""
    return _issue(pg, Kind.all_reduce, tensor, None, PLAIN, async_op, timeout, op=op, detail=detail)


def reduce(
    pg: ProcessGroup,
    tensor: Any,
    dst: int,
    op: Op,
    async_op: bool,
    timeout: float | None = None,
    detail: str = "",
) -> Work[Any]:
    """Reduce to `dst`, in place; a `detail` is compared, too. → `tensor` there, None elsewhere."""
    return _issue(pg, Kind.reduce, tensor, None, PLAIN, async_op, timeout, op=op, root=dst, detail=detail)


def all_gather(
    pg: ProcessGroup, tensors: Sequence[Any], tensor: Any, async_op: bool, timeout: float | None = None
) -> Work[Any]:
    """Gather every rank's tensor into a list of tensors. → the list."""
    return _issue(pg, Kind.all_gather, tensor, tensors, _ALL_GATHER, async_op, timeout)


def all_gather_into_tensor(
    pg: ProcessGroup,
    output: Any,
    tensor: Any,
    async_op: bool,
    timeout: float | None = None,
    detail: str = "",
) -> Work[Any]:
    """Gather every rank's tensor into one, stacked or concatenated along the first axis. → `output`."""
    return _issue(pg, Kind.all_gather, tensor, output, _ALL_GATHER_INTO, async_op, timeout, detail=detail)


def reduce_scatter(
    pg: ProcessGroup,
    output: Any,
    tensors: Sequence[Any],
    op: Op,
    async_op: bool,
    timeout: float | None = None,
    detail: str = "",
) -> Work[Any]:
    """Reduce a list over all ranks; rank r gets the r-th. → `output`."""
    more = {"op": op, "detail": detail}
    return _issue(pg, Kind.reduce_scatter, tensors, output, _REDUCE_SCATTER, async_op, timeout, **more)


def reduce_scatter_tensor(
    pg: ProcessGroup,
    output: Any,
    tensor: Any,
    op: Op,
    async_op: bool,
    timeout: float | None = None,
    detail: str = "",
) -> Work[Any]:
    """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis. → `output`."""
    more = {"op": op, "detail": detail}
    return _issue(pg, Kind.reduce_scatter, tensor, output, _REDUCE_SCATTER_TENSOR, async_op, timeout, **more)


def gather(
    pg: ProcessGroup,
    tensor: Any,
    tensors: Sequence[Any] | None,
    dst: int,
    async_op: bool,
    timeout: float | None = None,
) -> Work[Any]:
    """Gather every rank's tensor into a list on `dst`. → the list there, None elsewhere."""
    return _issue(pg, Kind.gather, tensor, tensors, _GATHER, async_op, timeout, root=dst)


def scatter(
    pg: ProcessGroup,
    tensor: Any,
    tensors: Sequence[Any] | None,
    src: int,
    async_op: bool,
    timeout: float | None = None,
) -> Work[Any]:
    """Deal a list on `src` out to all ranks. → `tensor`."""
    return _issue(pg, Kind.scatter, tensors, tensor, _SCATTER, async_op, timeout, root=src)


def all_to_all(
    pg: ProcessGroup,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    async_op: bool,
    timeout: float | None = None,
) -> Work[Any]:
    """Send the j-th input to rank j, get the i-th output from rank i; any sizes. → the outputs."""
    return pg._core.issue(exchange_lists(pg._core.roster, outputs, inputs), timeout, async_op)


def check_message(pg: ProcessGroup, tensor: Any, peer: int | None, tag: int, *, sends: bool) -> None:
    """Check all that `send` and `recv` check, before any message of a batch is under way."""
    pg._core.check_here()
    if peer is not None:
        check.group_rank(peer, pg.size, "peer")
    check.message_tag(tag)
    if sends:
        place_of(check.readable(tensor, "tensor"), None, pg._core.carriers)
    else:
        place_of(None, check.writable(tensor, "tensor"), pg._core.carriers)


def recv(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, held: bool) -> Work[int]:
    """Receive from a group rank or anybody. → the sender's global rank."""
    return pg._core.issue(receiving(pg._core.roster, tensor, src, tag, pg.ranks), None, held)
