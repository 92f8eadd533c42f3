"""Calls on plain arrays that are alike: checked once, and prepared for the engine's starter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from aiodist import _engine
from aiodist.backends.arrays.renewal import renewal
from aiodist.backends.arrays.view import overlaps_itself, torch_memory, view
from aiodist.backends.base import Array, Numbers
from aiodist.backends.host.local.plan import is_known
from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import UsageError
from aiodist.base.operations import OBJECT_KINDS, ROLES, Kind, Parts
from aiodist.base.timeouts import seconds
from aiodist.base.types import DTYPE_CODES, Call, ReduceOp, check_reduction, frames_of

Span = tuple[Any, range]
"""The plan of a call, and the numbers of elements for which calls of other shapes have one like it. False in
the place of a plan: the starter leaves them to the general way; None: of a group of one."""


def starter(
    issuer: GroupState,
    numbers: Numbers,
    rank: int,
    size: int,
    span: Callable[[Call], Span],
    owner: Any = None,
    slots: _engine.Slots | None = None,
) -> _engine.Starter | None:
    """The engine's starter of a group; None without the engine.

    Args:
        issuer: what the group's Works have in common.
        numbers: of its operations.
        rank: this process's group rank, of `size`.
        span: gives the span of a call.
        owner, slots: the group in shared memory; None for a group of one.
    """
    if _engine.compiled is None:
        return None
    return _engine.compiled.Starter(
        *(partial(_prepared, rank, size), span, issuer, numbers, owner, slots, Work, ReduceOp),
        *(torch_memory, _number, _staged, seconds),
    )


def copies(most: int, call: Call) -> Span:
    """The span of a call of a group of one, where each is a copy, of so many bytes at most."""
    count = most // call.dtype.itemsize
    return (None, range(count + 1)) if call.count <= count else (False, range(count + 1, call.count + 1))


def _number(obj: Any) -> tuple[Array, Callable[[Array], Any]] | None:
    """A number, of Python or NumPy, as an array of its own, and what makes one of an array again."""
    renew = renewal(obj) if isinstance(obj, bool | int | float | complex | np.generic) else None
    try:
        return None if renew is None else (np.array(view(obj, writable=False)), renew)
    except UsageError:  # the general way says why
        return None


def _staged(array: Array, written: bool) -> tuple[Array, Callable[[Array], Array] | None] | None:
    """A contiguous copy of an array that is strided or not aligned, and what copies it back where the array
    is written; None where it cannot be."""
    if written and (not array.flags.writeable or overlaps_itself(array)):
        return None
    copy = np.array(array, order="C")

    def back(_copy: Array) -> Array:
        np.copyto(array, copy)
        return array

    return copy, back if written else None


def _prepared(
    rank: int, size: int, number: int, dtype: np.dtype[Any] | None, op: Any, root: int
) -> _engine.Prepared | None:
    """Prepare all calls of a kind on arrays of a dtype; None where they are no case for the engine."""
    kind, place, detail = Kind(number % OBJECT_KINDS), root, ""
    if number >= OBJECT_KINDS:
        kind, place, detail = frames_of(kind, root)
    roles = ROLES[kind]
    call = Call(kind, 0, np.dtype(np.uint8), (0,))  # of those without data
    if roles.source is not Parts.NONE:
        if dtype not in DTYPE_CODES or not dtype.isnative or (roles.rooted and not 0 <= place < size):
            return None
        if not is_known(kind, size):
            return None
        try:
            reduce = check_reduction(op, dtype) if roles.reduces else None
        except UsageError:
            return None
        if reduce is ReduceOp.PREMUL_SUM:
            return None
        call = Call(kind, 0, dtype, (), reduce, place, detail=detail)
    assert _engine.compiled is not None
    return _engine.compiled.Prepared(
        *(call, op, root, size),
        cut=roles.cut and not roles.agrees_on_part,
        splits=roles.reduces and roles.cut,
        stacks=roles.agrees_on_part,
        one_tensor=roles.one_tensor,
        deals=roles.root_gives and not roles.one_tensor,
        gives=roles.gives(rank, place),
        gets=roles.gets(rank, place),
        in_place=roles.source is roles.target is Parts.ONE and not roles.root_gives,
    )
