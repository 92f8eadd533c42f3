"""The request that a call of a collective makes: its arguments, checked by the table of roles.

A tensor that has a part for each member is passed as one array, its parts stacked along a new first axis or
joined along the one they have, or as a list of tensors (torch's form). Everything is checked here, before a
number is taken: what a `Request` says can be carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.arrays import check_shape, renewal
from aiodist.backends.base import Array, Given
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Kind, Parts, Roles
from aiodist.base.types import NO_ROOT, Premultiplied, ReduceOp, check_reduction
from aiodist.group import arguments as check
from aiodist.group import lists
from aiodist.group.roster import Roster

Op = ReduceOp | Premultiplied

NO_DATA = (np.dtype(np.uint8), (0,))
"""dtype and shape that ranks agree on where an operation has no tensor."""


@dataclass(slots=True)
class Request:
    """One operation as a caller asks for it: all of it but its number.

    Args:
        kind: the operation.
        agreed: dtype and shape that all ranks have alike.
        source, target: arrays that are read and written, as in `Operation`.
        result: what the Work gives.
        reduce, factor: how elements combine, and what this rank's are multiplied by first.
        root: group rank.
        detail: anything else that ranks must agree on, as text.
        source_sizes, target_sizes: elements of the parts, where they may differ.
        peer, tag, senders: of a message.
        own: the arrays are the group's own, not the caller's: the host engine carries it out.
        convert: makes what the Work gives of `result`, once it is there (`Operation`).
    """

    kind: Kind
    agreed: tuple[np.dtype[Any], tuple[int, ...]]
    source: Given = None
    target: Given = None
    result: Any = None
    reduce: ReduceOp | None = None
    factor: float | None = None
    root: int = NO_ROOT
    detail: str = ""
    source_sizes: Sequence[int] | None = None
    target_sizes: Sequence[int] | None = None
    peer: int = -1
    tag: int = 0
    senders: Sequence[int] = ()
    own: bool = False
    convert: Callable[[Any], Any] | None = None


def internal(kind: Kind, array: Array, target: Array | None = None, **more: Any) -> Request:
    """An operation of the group's own on arrays of its own, which the host engine carries out.

    Args:
        kind: a collective.
        array: what is read; ranks agree on its dtype and shape.
        target: what is written, and given by the Work; `array` itself by default.
        more: fields of `Request`.
    """
    into = array if target is None else target
    return Request(kind, (array.dtype, array.shape), array, into, into, own=True, **more)


class Names(NamedTuple):
    """The caller's names of the arguments, for error texts; and whether parts are passed as a list."""

    tensor: str = "tensor"
    out: str = "out"
    listed: bool = False


PLAIN = Names()


def request(
    kind: Kind,
    here: Roster,
    tensor: Any = None,
    out: Any = None,
    *,
    root: object = None,
    op: Op | None = None,
    names: Names = PLAIN,
    sizes: Sequence[int] | None = None,
    detail: str = "",
) -> Request:
    """Check the arguments of a collective.

    Args:
        kind: the collective.
        here: the members, and which of them this is.
        tensor: what is read; None where this rank gives nothing.
        out: what is written; None: `tensor` itself, or a new tensor of its family, where this rank gets
            something.
        root: group rank, for those with one; unchecked.
        op: how elements combine, for those that reduce; unchecked.
        names: of the arguments.
        sizes: rows of the part of, or for, each member, where they differ; unchecked.
        detail: anything else that ranks must agree on, as text; not with `sizes`, which are such.
    """
    roles = ROLES[kind]
    member = check.group_rank(root, here.size, roles.root_name) if roles.rooted else NO_ROOT
    if roles.source is Parts.NONE:
        return Request(kind, NO_DATA)
    counts = None if sizes is None else check.counts(sizes, here.size, "sizes")
    renew: Callable[[Any], Any] | None = None
    of_scatter = roles.source is Parts.EACH and roles.root_gives  # whose `out` is what all ranks pass
    lead = out if of_scatter else tensor
    plain = type(lead) is np.ndarray and lead.flags.writeable  # as usual: no more is asked of it
    if not (plain or names.listed) and (roles.cut or roles.gets(here.rank, member)):
        if of_scatter:
            out, renew = _renewed(out, names.out, written=True)
        elif out is None:
            tensor, renew = _renewed(tensor, names.tensor, written=not roles.cut)
    try:
        if counts is not None:
            made = _uneven(kind, here, tensor, out, counts)
        else:
            if not roles.cut:
                source, target, result = _whole(roles, here, member, tensor, out, names)
                one = source
            elif roles.source is Parts.ONE:
                source, target, result = _to_each(roles, here, member, tensor, out, names)
                one = source
            else:
                source, target, result = _from_each(roles, here, member, tensor, out, names)
                one = target
            assert isinstance(one, np.ndarray)
            shape = one.shape
            if roles.cut and not roles.agrees_on_part:
                shape = source.shape if isinstance(source, np.ndarray) else (here.size, *shape)
            made = Request(kind, (one.dtype, shape), source, target, result, root=member, detail=detail)
    except UsageError as error:
        error.hint = lists.hint(kind, names.listed, tensor, out) or error.hint
        raise
    if roles.reduces:
        made.reduce = check_reduction(op, made.agreed[0])  # type: ignore[arg-type]
        made.factor = op.factor if isinstance(op, Premultiplied) else None
    if renew is not None and made.result is not None:
        made.convert = renew
    return made


def _renewed(tensor: Any, name: str, written: bool) -> tuple[Any, Callable[[Any], Any] | None]:
    """A tensor that cannot be written as an array to work on, and what makes a new value of the result.

    Args:
        written: the operation writes to the tensor.
    """
    renew = renewal(tensor)
    if renew is None:
        return tensor, None
    array = check.readable(tensor, name)
    try:
        return (np.array(array) if written else array), renew
    except MemoryError:
        raise UsageError(
            f"no memory for a new value of {name}: {array.nbytes} bytes", hint="Pass a writable array"
        ) from None


Arranged = tuple[Given, Given, Any]
"""The source, the target, and what the Work gives."""


def _whole(roles: Roles, here: Roster, root: int, tensor: Any, out: Any, names: Names) -> Arranged:
    """Arrange one tensor, alike on all ranks."""
    gives, gets = roles.gives(here.rank, root), roles.gets(here.rank, root)
    if roles.one_tensor:
        array = (check.readable if gives else check.writable)(tensor, names.tensor)
        return array, array, tensor
    if not gets:
        return check.readable(tensor, names.tensor), None, None
    if out is None:
        array = check.writable(tensor, names.tensor)
        return array, array, tensor
    source = check.readable(tensor, names.tensor)
    result, target = check.output(out, tensor, source, source.shape)
    return source, target, result


def _to_each(roles: Roles, here: Roster, root: int, tensor: Any, out: Any, names: Names) -> Arranged:
    """Arrange a part that each rank gives; a rank that gets has room for all of them."""
    source = check.readable(tensor, names.tensor)
    if not roles.gets(here.rank, root):
        _refuse(out, names.out, roles, here, root)
        return source, None, None
    if out is None and not names.listed:
        result, target = check.output(None, tensor, source, (here.size, *source.shape))
        return source, target, result
    targets = _each(out, source, here.size, names.out, names.listed, writable=True)
    check.all_apart(targets, names.out, source, names.tensor)
    return source, targets, out


def _from_each(roles: Roles, here: Roster, root: int, tensor: Any, out: Any, names: Names) -> Arranged:
    """Arrange parts that a rank gives, one for each rank."""
    if roles.reduces and not names.listed and out is None:
        source = check.readable(tensor, names.tensor)
        result, target = check.output(None, tensor, source, check.split_axis(source, here.size))
        return source, target, result
    target = check.writable(out, names.out)
    if not roles.gives(here.rank, root):
        _refuse(tensor, names.tensor, roles, here, root)
        return None, target, out
    if tensor is None:
        raise UsageError(
            f"{names.tensor} is missing" + (f" on {roles.root_name}={root}" if roles.rooted else ""),
            hint="Pass the rows to deal out" if roles.rooted else "Pass what this rank gives",
        )
    sources = _each(tensor, target, here.size, names.tensor, names.listed, writable=False)
    check.all_apart(target, names.out, sources, names.tensor)
    return sources, target, out


def _each(value: Any, part: Array, size: int, name: str, listed: bool, writable: bool) -> Given:
    """The parts for, or from, each member: a list, or one array whose parts are stacked or joined."""
    find = check.writable if writable else check.readable
    if listed:
        arrays = _found(value, size, name, find)
        for index, array in enumerate(arrays):
            check.shaped_like(array, part, f"{name}[{index}]")
            if writable:
                for other in range(index):
                    check.apart(f"{name}[{index}]", array, f"{name}[{other}]", arrays[other])
        return arrays
    array = find(value, name)
    stacked = (size, *part.shape)
    joined = (size * part.shape[0], *part.shape[1:]) if part.ndim else (size,)
    if array.shape not in (stacked, joined):
        raise UsageError(
            f"{name} has shape {array.shape}, expected {joined} or {stacked}",
            hint="It has a part for each rank: joined along the first axis, or stacked",
        )
    check.same_dtype(name, array, part)
    check_shape(stacked, array.dtype)
    if writable and array.shape != stacked:
        array = np.ndarray.reshape(array, stacked)  # splitting the first axis never copies
    return array


def _found(tensors: Any, size: int, name: str, find: Callable[[Any, str], Array]) -> list[Array]:
    """The arrays of a list of tensors, one for each rank."""
    return [find(tensor, f"{name}[{i}]") for i, tensor in enumerate(check.listed(tensors, size, name))]


def _refuse(value: Any, name: str, roles: Roles, here: Roster, root: int) -> None:
    """Refuse what only the root passes; torch's scripts pass an empty list where they have nothing."""
    if given(value):
        raise UsageError(
            f"{name} is for {roles.root_name}={root}, this is rank {here.rank}", hint="Pass None here"
        )


def given(value: Any) -> bool:
    """Whether a value is given; torch's scripts pass an empty list, too, where they have nothing."""
    return value is not None and not (isinstance(value, list | tuple) and not value)


def _uneven(kind: Kind, here: Roster, tensor: Any, out: Any, sizes: list[int]) -> Request:
    """A collective without a root whose parts are rows, so many of each member as `sizes` says."""
    roles = ROLES[kind]
    source = check.readable(tensor, "tensor")
    each, one = sum(sizes), sizes[here.rank]
    rows, made_rows = (one, each) if roles.source is Parts.ONE else (each, one)
    if not source.ndim or source.shape[0] != rows:
        raise UsageError(
            f"tensor has shape {source.shape}, and sizes={sizes} say {rows} rows on rank {here.rank}",
            hint="sizes has the rows of each rank, along the first axis",
        )
    result, target = check.output(out, tensor, source, (made_rows, *source.shape[1:]))
    width = math.prod(source.shape[1:])
    made = Request(
        kind, (source.dtype, (each, *source.shape[1:])), source, target, result, detail=f"sizes={sizes}"
    )
    elements = [count * width for count in sizes]
    made.source_sizes = elements if roles.source is Parts.EACH else None
    made.target_sizes = elements if roles.target is Parts.EACH else None
    return made


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────


def sending(here: Roster, tensor: Any, dst: object, tag: object) -> Request:
    """Check a send. Arguments as in `ProcessGroup.send`."""
    peer, number = check.group_rank(dst, here.size, "dst"), check.message_tag(tag)
    source = check.readable(tensor, "tensor")
    return Request(Kind.send, (source.dtype, source.shape), source, peer=peer, tag=number)


def receiving(
    here: Roster, tensor: Any, src: object | None, tag: object, senders: Sequence[int] | None = None
) -> Request:
    """Check a receive. Arguments as in `ProcessGroup.recv`; `senders`: what the Work gives, by group rank."""
    peer, number = source_rank(src, here.size), check.message_tag(tag)
    target = check.writable(tensor, "tensor", has_out=False)
    asked = Request(Kind.recv, (target.dtype, target.shape), target=target, peer=peer, tag=number)
    asked.senders = range(here.size) if senders is None else senders
    return asked


def source_rank(src: object | None, size: int) -> int:
    """The rank that a message is received from; -1 takes one from anybody."""
    return -1 if src is None else check.group_rank(src, size, "src")


# ── all_to_all: each pair may have a size of its own ─────────────────────────────────────────────────


def exchange(
    here: Roster, tensor: Any, out: Any, in_splits: Sequence[int] | None, out_splits: Sequence[int] | None
) -> Request:
    """Check an all_to_all of one tensor. Arguments as in `ProcessGroup.all_to_all`."""
    size = here.size
    renew = renewal(tensor) if out is None else None
    try:
        source = check.readable(tensor, "tensor")
    except UsageError as error:
        error.hint = lists.hint(Kind.all_to_all, False, tensor) or error.hint
        raise
    sent = check.splits(source, in_splits, size, "tensor", "in_splits")
    if out is None:
        if out_splits is None and in_splits is not None:
            raise UsageError("in_splits alone does not say what arrives", hint="Pass out_splits, too")
        rows = source.shape[0] if out_splits is None else sum(check.counts(out_splits, size, "out_splits"))
        result, target = check.output(None, tensor, source, (rows, *source.shape[1:]))
    else:
        result, target = out, check.writable(out, "out")
        if target.ndim != source.ndim or target.shape[1:] != source.shape[1:]:
            raise UsageError(f"out has shape {target.shape}, its rows must be shaped {source.shape[1:]}")
        check.same_dtype("out", target, source)
        check.apart("out", target, "tensor", source)
    received = check.splits(target, out_splits, size, "out", "out_splits")
    check.own_part(sent[here.rank], received[here.rank], "rows")
    made = Request(Kind.all_to_all, (source.dtype, source.shape), source, target, result, convert=renew)
    if in_splits is not None or out_splits is not None:
        width = math.prod(source.shape[1:])
        made.agreed = (source.dtype, source.shape[1:])
        made.source_sizes = [count * width for count in sent]
        made.target_sizes = [count * width for count in received]
        made.detail = "splits"
    return made


def exchange_lists(here: Roster, outputs: Any, inputs: Any) -> Request:
    """Check an all_to_all of lists: the j-th input goes to rank j, the i-th output comes from rank i."""
    names = ("input_tensor_list", "output_tensor_list")
    sources = _found(inputs, here.size, names[0], check.readable)
    targets = _found(outputs, here.size, names[1], check.writable)
    known = [(f"{names[0]}[{index}]", array) for index, array in enumerate(sources)]
    for name, array in known:
        check.same_dtype(name, array, sources[0])
    check.own_part(sources[here.rank].size, targets[here.rank].size, "elements")
    for index, target in enumerate(targets):
        name = f"{names[1]}[{index}]"
        check.same_dtype(name, target, sources[0])
        for other, array in known:
            check.apart(name, target, other, array)
        known.append((name, target))
    return Request(
        Kind.all_to_all,
        (sources[0].dtype, ()),
        sources,
        targets,
        outputs,
        detail="lists",
        source_sizes=[source.size for source in sources],
        target_sizes=[target.size for target in targets],
    )
