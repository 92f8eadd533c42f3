"""One step as module-level calls: the same code for torch.distributed and for aiodist."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.differential import steps
from tests.differential.steps import BFLOAT16, Array, Step


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step runs.

    Args:
        dist: `torch.distributed`, or `aiodist`.
        group: as the library made it.
        ranks: the members' global ranks.
        me: this process's group rank.
        tag: of the step's messages; no other step of any program has it, because a receive from any source
            may take what a rank that is ahead sent in a later program.
        lay_out: whether tensors lie in memory as the step says.
    """

    dist: Any
    group: Any
    ranks: tuple[int, ...]
    me: int
    tag: int
    lay_out: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that was issued.

    Args:
        handles: what the calls returned.
        outcome: given what the handles gave, what the step has left here, as `steps.expected`.
    """

    handles: list[Any]
    outcome: Callable[[list[Any]], list[Any]]


def tensor_of(array: Array) -> torch.Tensor:
    """A new torch tensor with an array's values."""
    if array.dtype == BFLOAT16:
        halves: torch.Tensor = torch.from_numpy(array.view(np.int16).copy())
        return halves.view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's values as a new array."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        halves: Array = tensor.view(torch.int16).numpy().copy()
        return halves.view(BFLOAT16)
    array: Array = tensor.numpy().copy()
    return array


class Maker:
    """Makes a step's tensors, laid out as it says."""

    def __init__(self, step: Step, place: Place) -> None:
        self._step = step
        self._me = place.me
        self.by_value = place.lay_out and step.layout == "value"
        self._layout = step.layout if place.lay_out and not self.by_value else "C"

    def mine(self, shape: tuple[int, ...], part: int = 0, *, read: bool = False) -> torch.Tensor:
        """This rank's tensor; `read`: nothing writes to it."""
        return self.laid(steps.value(self._step, self._me, shape, part), read=read)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor to be filled."""
        return self.laid(np.ones(shape, steps.DTYPES[self._step.dtype]))

    def value(self, array: Array) -> Any:
        """What cannot be written, with an array's values: a read-only array, NumPy's scalar or Python's."""
        if array.ndim:
            array.flags.writeable = False
            return array
        plain = array.dtype in (np.int64, np.float64, np.complex128, np.bool_) and self._step.salt % 2
        return array.item() if plain else array[()]

    def laid(self, array: Array, *, read: bool = False) -> torch.Tensor:
        """A tensor with an array's values."""
        tensor = tensor_of(array)
        if tensor.ndim == 0 or self._layout == "C" or (self._layout == "expanded" and not read):
            return tensor
        if self._layout == "F":
            return tensor_of(array.T).T if array.ndim == 2 else tensor
        if self._layout == "expanded":  # without a stride of its own, where the values allow that
            alike = len(array) > 1 and bool((array == array[:1]).all())
            return tensor[:1].expand(tensor.shape) if alike else tensor
        wide = torch.zeros((*tensor.shape[:-1], tensor.shape[-1] * 3), dtype=tensor.dtype)
        view = wide[..., 1::3]
        view.copy_(tensor)
        return view


def begin(step: Step, place: Place) -> Begun:
    """Issue the step's calls on this rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what it will not do one day
        if step.kind in steps.REDUCING:
            return _reducing(step, place)
        if step.kind in steps.MOVING:
            return _moving(step, place)
        if step.kind in steps.OBJECTS:
            return _objects(step, place)
        return _messages(step, place)


def _root(step: Step, place: Place, name: str, rank: int | None = None) -> dict[str, int]:
    rank = step.root if rank is None else rank
    return {f"group_{name}": rank} if step.by_group else {name: place.ranks[rank]}


def _plain(*tensors: torch.Tensor) -> Callable[[list[Any]], list[Any]]:
    return lambda given: [array_of(tensor) for tensor in tensors]


def _reducing(step: Step, place: Place) -> Begun:
    dist, make, everybody = place.dist, Maker(step, place), range(len(place.ranks))
    if step.op == "PREMUL_SUM":
        op = dist.premul_sum(steps.factor(step, place.me))
    else:
        op = getattr(dist.ReduceOp, step.op)
    common: dict[str, Any] = {"op": op, "group": place.group, "async_op": step.held}
    if make.by_value and step.kind in ("all_reduce", "reduce"):
        mine = steps.value(step, place.me, step.shape)
        root = _root(step, place, "dst") if step.kind == "reduce" else {}
        handle = getattr(dist, step.kind)(make.value(mine), **root, **common)
        return Begun([handle], lambda given: [mine if given[0] is None else np.asarray(given[0])])
    if step.kind == "all_reduce":
        tensor = make.mine(step.shape)
        return Begun([dist.all_reduce(tensor, **common)], _plain(tensor))
    if step.kind == "reduce":
        tensor = make.mine(step.shape)
        return Begun([dist.reduce(tensor, **_root(step, place, "dst"), **common)], _plain(tensor))
    output = make.empty(step.shape)
    if step.kind == "reduce_scatter":
        inputs = [make.mine(step.shape, part, read=True) for part in everybody]
        return Begun([dist.reduce_scatter(output, inputs, **common)], _plain(output, *inputs))
    parts = [steps.value(step, place.me, step.shape, part) for part in everybody]
    large = make.laid(steps.joined(step, parts), read=True)
    return Begun([dist.reduce_scatter_tensor(output, large, **common)], _plain(output, large))


def _moving(step: Step, place: Place) -> Begun:
    dist, make, me = place.dist, Maker(step, place), place.me
    everybody = range(len(place.ranks))
    common: dict[str, Any] = {"group": place.group, "async_op": step.held}
    if make.by_value and step.kind == "broadcast":
        given_value = make.value(steps.value(step, me, step.shape))
        handle = dist.broadcast(given_value, **_root(step, place, "src"), **common)
        return Begun([handle], lambda given: [np.asarray(given[0])])
    tensor = make.mine(step.shape, read=step.kind != "broadcast")
    match step.kind:
        case "broadcast":
            return Begun([dist.broadcast(tensor, **_root(step, place, "src"), **common)], _plain(tensor))
        case "all_gather":
            outputs = [make.empty(step.shape) for _ in everybody]
            return Begun([dist.all_gather(outputs, tensor, **common)], _plain(*outputs, tensor))
        case "all_gather_into_tensor":
            like = steps.joined(step, [steps.value(step, me, step.shape)] * len(everybody))
            output = make.empty(like.shape)
            return Begun([dist.all_gather_into_tensor(output, tensor, **common)], _plain(output, tensor))
        case "gather":
            outputs = [make.empty(step.shape) for _ in everybody if me == step.root]
            handle = dist.gather(tensor, outputs or None, **_root(step, place, "dst"), **common)
            return Begun([handle], _plain(*outputs, tensor))
        case "scatter":
            output = make.empty(step.shape)
            dealt = [make.mine(step.shape, part, read=True) for part in everybody if me == step.root]
            handle = dist.scatter(output, dealt or None, **_root(step, place, "src"), **common)
            return Begun([handle], _plain(output))
    rows = steps.even(step) if step.kind == "all_to_all_single" and step.stacked else step.rows
    out_rows, in_rows = [rows[rank][me] for rank in everybody], list(rows[me])
    if step.kind == "all_to_all":
        outputs = [make.empty((count, *step.shape)) for count in out_rows]
        inputs = [make.mine((in_rows[rank], *step.shape), rank, read=True) for rank in everybody]
        return Begun([dist.all_to_all(outputs, inputs, **common)], _plain(*outputs))
    parts = [steps.value(step, me, (in_rows[rank], *step.shape), rank) for rank in everybody]
    large = make.laid(np.concatenate(parts), read=True)
    output = make.empty((sum(out_rows), *step.shape))
    splits = [] if step.stacked else [out_rows, in_rows]
    return Begun([dist.all_to_all_single(output, large, *splits, **common)], _plain(output))


def _objects(step: Step, place: Place) -> Begun:
    dist, me, size = place.dist, place.me, len(place.ranks)
    mine = steps.thing(step, me)
    into: list[Any]
    match step.kind:
        case "all_gather_object":
            into = [None] * size
            return Begun([dist.all_gather_object(into, mine, group=place.group)], lambda given: [into])
        case "gather_object":
            into = [None] * size
            here = me == step.root
            handle = dist.gather_object(
                mine, into if here else None, group=place.group, **_root(step, place, "dst")
            )
            return Begun([handle], lambda given: [into] if here else [])
        case "broadcast_object_list":
            into = [steps.thing(step, me, part) if me == step.root else None for part in range(2)]
            handle = dist.broadcast_object_list(into, group=place.group, **_root(step, place, "src"))
            return Begun([handle], lambda given: [into])
        case "scatter_object_list":
            into = [None]
            dealt = [steps.thing(step, me, part) for part in range(size)] if me == step.root else None
            handle = dist.scatter_object_list(into, dealt, group=place.group, **_root(step, place, "src"))
            return Begun([handle], lambda given: [into])
    handles = []
    if me == step.root:
        things = [steps.thing(step, me, part) for part in range(2)]
        peer = _root(step, place, "dst", step.target)
        handles.append(dist.send_object_list(things, group=place.group, **peer))
    if me == step.target:
        into = [None, None]
        handles.append(dist.recv_object_list(into, group=place.group, **_root(step, place, "src")))
        return Begun(handles, lambda given: [into, place.ranks.index(given[-1])])
    return Begun(handles, lambda given: [])


def _messages(step: Step, place: Place) -> Begun:
    dist, make, me, group = place.dist, Maker(step, place), place.me, place.group
    size, tag = len(place.ranks), place.tag
    match step.kind:
        case "barrier":
            return Begun([dist.barrier(group, async_op=step.held)], lambda given: [])
        case "monitored_barrier":
            return Begun([dist.monitored_barrier(group)], lambda given: [])
        case "send":
            return _message(step, place, make)
        case "send_any" if me == step.root:
            outputs = [make.empty(step.shape) for _ in range(size - 1)]
            handles = [dist.recv(output, None, group, tag) for output in outputs]

            def by_sender(given: list[Any]) -> list[Any]:
                senders = [place.ranks.index(rank) for rank in given]
                return [dict(zip(senders, map(array_of, outputs), strict=True))]

            return Begun(handles, by_sender)
        case "send_any":
            peer = _root(step, place, "dst")
            handle = dist.send(make.mine(step.shape, read=True), group=group, tag=tag, **peer)
            return Begun([handle], lambda given: [])
        case "batch_isend_irecv":
            output, tensor = make.empty(step.shape), make.mine(step.shape, read=True)
            after, before = place.ranks[(me + 1) % size], place.ranks[(me - 1) % size]
            batch = [
                dist.P2POp(dist.isend, tensor, after, group, tag),
                dist.P2POp(dist.irecv, output, before, group, tag),
            ]
            return Begun(dist.batch_isend_irecv(batch), _plain(output))
    return Begun([], lambda given: [])


def _message(step: Step, place: Place, make: Maker) -> Begun:
    """A message from the root to the target, which may be the same rank."""
    dist, where = place.dist, {"group": place.group, "tag": place.tag}
    handles: list[Any] = []
    if place.me == step.root:
        mine = steps.value(step, place.me, step.shape)
        tensor = make.value(mine) if make.by_value else make.mine(step.shape, read=True)
        send = dist.isend if step.held else dist.send
        handles.append(send(tensor, **where, **_root(step, place, "dst", step.target)))
    if place.me != step.target:
        return Begun(handles, lambda given: [])
    output = make.empty(step.shape)
    recv = dist.irecv if step.held else dist.recv
    handles.append(recv(output, **where, **_root(step, place, "src")))

    def received(given: list[Any]) -> list[Any]:
        return [array_of(output), step.root if step.held else place.ranks.index(given[-1])]

    return Begun(handles, received)
