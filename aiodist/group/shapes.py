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
from aiodist.group.collectives import Op, reducing
from aiodist.group.places import place_of
from aiodist.group.process_group import ProcessGroup
from aiodist.tensors import check_shape
from aiodist.types import Kind
from aiodist.work import Work


def all_gather(pg: ProcessGroup, tensors: Sequence[Any], tensor: Any, async_op: bool) -> Work[Any]:
    """Every rank's tensor into a list of tensors. → the list."""
    source = check.readable(tensor, "tensor")
    arrays = _outputs(tensors, [source] * pg.size, "tensor_list")
    for index, array in enumerate(arrays):
        check.apart(f"tensor_list[{index}]", array, "tensor", source)
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
    check_shape(stacked, target.dtype)
    rows = target.reshape(stacked)  # splitting the first axis never copies
    return pg._issue(Kind.all_gather, source, source, rows, output, None, async_op)


def reduce_scatter(
    pg: ProcessGroup, output: Any, tensors: Sequence[Any], op: Op, async_op: bool
) -> Work[Any]:
    """Reduce a list over all ranks; rank r gets the r-th. → `output`."""
    target = check.writable(output, "output")
    arrays = _inputs(tensors, [target] * pg.size, "input_list")
    for index, array in enumerate(arrays):
        check.apart("output", target, f"input_list[{index}]", array)
    agreed = (target.dtype, (pg.size, *target.shape))
    return pg._issue(
        Kind.reduce_scatter, agreed, arrays, target, output, None, async_op, **reducing(op, target.dtype)
    )


def reduce_scatter_tensor(pg: ProcessGroup, output: Any, tensor: Any, op: Op, async_op: bool) -> Work[Any]:
    """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis. → `output`."""
    source = check.readable(tensor, "input")
    target = check.writable(output, "output")
    stacked = (pg.size, *target.shape)
    joined = (pg.size * target.shape[0], *target.shape[1:]) if target.ndim else (pg.size,)
    if source.shape not in (stacked, joined):
        raise UsageError(f"input has shape {source.shape}, expected {joined} or {stacked}")
    check.same_dtype("output", target, source)
    check.apart("output", target, "input", source)
    return pg._issue(
        Kind.reduce_scatter, source, source, target, output, None, async_op, **reducing(op, source.dtype)
    )


def gather(
    pg: ProcessGroup, tensor: Any, tensors: Sequence[Any] | None, dst: int, async_op: bool
) -> Work[Any]:
    """Every rank's tensor into a list on `dst`. → the list there, None elsewhere."""
    root = check.group_rank(dst, pg.size, "dst")
    source = check.readable(tensor, "tensor")
    arrays: list[Array] | None = None
    if root == pg.rank:
        arrays = _outputs(tensors, [source] * pg.size, "gather_list")
        for index, array in enumerate(arrays):
            check.apart(f"gather_list[{index}]", array, "tensor", source)
    elif given(tensors):
        raise UsageError(f"gather_list is for dst, this is rank {pg.rank}", hint="Pass None here")
    return pg._issue(Kind.gather, source, source, arrays, tensors, None, async_op, root=root)


def scatter(
    pg: ProcessGroup, tensor: Any, tensors: Sequence[Any] | None, src: int, async_op: bool
) -> Work[Any]:
    """Deal a list on `src` out to all ranks. → `tensor`."""
    root = check.group_rank(src, pg.size, "src")
    target = check.writable(tensor, "tensor")
    arrays: list[Array] | None = None
    if root == pg.rank:
        arrays = _inputs(tensors, [target] * pg.size, "scatter_list")
        for index, array in enumerate(arrays):
            check.apart("tensor", target, f"scatter_list[{index}]", array)
    elif given(tensors):
        raise UsageError(f"scatter_list is for src, this is rank {pg.rank}", hint="Pass None here")
    return pg._issue(Kind.scatter, target, arrays, target, tensor, None, async_op, root=root)


def all_to_all(pg: ProcessGroup, outputs: Sequence[Any], inputs: Sequence[Any], async_op: bool) -> Work[Any]:
    """The j-th input goes to rank j, the i-th output comes from rank i; any sizes. → the outputs."""
    sources = [
        check.readable(t, f"input_tensor_list[{i}]")
        for i, t in enumerate(_listed(inputs, pg.size, "input_tensor_list"))
    ]
    targets = [
        check.writable(t, f"output_tensor_list[{i}]")
        for i, t in enumerate(_listed(outputs, pg.size, "output_tensor_list"))
    ]
    for index, array in enumerate([*sources, *targets]):
        name = "input_tensor_list" if index < pg.size else "output_tensor_list"
        check.same_dtype(f"{name}[{index % pg.size}]", array, sources[0])
    check.own_part(sources[pg.rank].size, targets[pg.rank].size, "elements")
    for index, target in enumerate(targets):
        for other, array in enumerate([*sources, *targets[:index]]):
            name = "input_tensor_list" if other < pg.size else "output_tensor_list"
            check.apart(f"output_tensor_list[{index}]", target, f"{name}[{other % pg.size}]", array)
    return pg._issue(
        Kind.all_to_all,
        (sources[0].dtype, ()),
        sources,
        targets,
        outputs,
        None,
        async_op,
        sizes=[target.size for target in targets],
        sent=[source.size for source in sources],
        detail="lists",
    )


def check_message(pg: ProcessGroup, tensor: Any, peer: int | None, tag: int, *, sends: bool) -> None:
    """All that `send` and `recv` check, before any message of a batch is under way."""
    pg._check_here()
    if peer is not None:
        check.peer_rank(peer, pg.rank, pg.size, "peer")
    check.message_tag(tag)
    if sends:
        place_of(check.readable(tensor, "tensor"), None, pg._backend)
    else:
        place_of(None, check.writable(tensor, "tensor"), pg._backend)


def recv(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, held: bool) -> Work[int]:
    """Receive from a group rank or anybody. → the sender's global rank."""
    peer = -1 if src is None else check.peer_rank(src, pg.rank, pg.size, "src")
    if pg.size == 1:
        raise UsageError("a group of one has nobody to receive from")
    target = check.writable(tensor, "tensor")
    number = check.message_tag(tag)
    return pg._issue(
        Kind.recv, target, None, target, None, None, held, peer=peer, tag=number, senders=pg.ranks
    )


def given(tensors: Any) -> bool:
    """Whether there is something; torch's scripts pass an empty list, too, where they have nothing."""
    return tensors is not None and not (isinstance(tensors, list | tuple) and not tensors)


def _outputs(tensors: Sequence[Any] | None, likes: Sequence[Array], name: str) -> list[Array]:
    """Writable arrays shaped alike, none sharing memory with another."""
    arrays = [
        check.writable(tensor, f"{name}[{index}]")
        for index, tensor in enumerate(_listed(tensors, len(likes), name))
    ]
    for index, array in enumerate(arrays):
        _alike(array, likes[index], f"{name}[{index}]")
        for other in range(index):
            check.apart(f"{name}[{index}]", array, f"{name}[{other}]", arrays[other])
    return arrays


def _inputs(tensors: Sequence[Any] | None, likes: Sequence[Array], name: str) -> list[Array]:
    """Readable arrays shaped alike."""
    arrays = [
        check.readable(tensor, f"{name}[{index}]")
        for index, tensor in enumerate(_listed(tensors, len(likes), name))
    ]
    for index, array in enumerate(arrays):
        _alike(array, likes[index], f"{name}[{index}]")
    return arrays


def _listed(tensors: Sequence[Any] | None, size: int, name: str) -> list[Any]:
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
