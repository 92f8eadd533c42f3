"""Calls on plain arrays that are alike: checked once, and prepared for the engine's starter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist import _engine
from aiodist.backends.arrays.renewal import renewal
from aiodist.backends.arrays.view import overlaps_itself, torch_memory, view
from aiodist.backends.base import Array, Numbers
from aiodist.backends.host.local.plan import Path
from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Kind, Parts
from aiodist.base.timeouts import seconds
from aiodist.base.types import DTYPE_CODES, Call, ReduceOp, check_reduction

_MOST_AXES = 31  # of an array: a result may have one more, and that is the most in every NumPy
_ON_THE_LOOP = (Path.meet, Path.direct, Path.slot, Path.inline)


def starter(
    issuer: GroupState,
    numbers: Numbers,
    rank: int,
    size: int,
    plan: Callable[[Call, int], _engine.Plan] | None,
    most: int = 0,
    owner: Any = None,
    slots: _engine.Slots | None = None,
) -> _engine.Starter | None:
    """The engine's starter of a group; None without the engine.

    Args:
        issuer: what the group's Works have in common.
        numbers: of its operations.
        rank: this process's group rank, of `size`.
        plan: gives the plan of a call and the bytes of its buffers; None: of a group of one, where each is a
            copy of `most` bytes at most.
        owner, slots: the group in shared memory; None for a group of one.
    """
    if _engine.compiled is None:
        return None
    prepare = _Preparing(issuer, rank, size, plan, most)
    return _engine.compiled.Starter(
        *(prepare, issuer, numbers, owner, slots, Work, ReduceOp, torch_memory, _number, _staged, seconds)
    )


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


class _Preparing:
    """The maker of prepared calls; arguments as of `starter`."""

    def __init__(
        self,
        issuer: GroupState,
        rank: int,
        size: int,
        plan: Callable[[Call, int], _engine.Plan] | None,
        most: int,
    ) -> None:
        self._sort_of = issuer.track.sort_of
        self._rank, self._size = rank, size
        self._plan = plan
        self._most = most

    def __call__(
        self, number: int, dtype: np.dtype[Any] | None, shape: tuple[int, ...], op: Any, root: int
    ) -> _engine.Prepared | None:
        """The prepared call of a kind, on arrays like this; None where it is no case for that."""
        kind = Kind(number)
        roles = ROLES[kind]
        if roles.source is Parts.NONE:
            return self._prepared(Call(kind, 0, np.dtype(np.uint8), (0,)), 0, 0, ())
        if dtype not in DTYPE_CODES or not dtype.isnative or len(shape) > _MOST_AXES or 0 in shape:
            return None
        if roles.rooted and not 0 <= root < self._size:
            return None
        other_shapes: tuple[tuple[int, ...], ...] = (shape,)
        if roles.source is not roles.target:
            if roles.reduces:  # its parts are joined along the first axis
                if not shape or shape[0] % self._size:
                    return None
                part = (shape[0] // self._size, *shape[1:])
                other_shapes = (part,) if part[0] != 1 or len(part) == 1 else (part, part[1:])
            else:
                other_shapes = ((self._size, *shape),)
                if shape:
                    other_shapes += ((self._size * shape[0], *shape[1:]),)
        elif roles.cut and (not shape or shape[0] % self._size):
            return None
        try:
            reduce = check_reduction(op, dtype) if roles.reduces else None
        except UsageError:
            return None
        if reduce is ReduceOp.PREMUL_SUM:
            return None
        call = Call(kind, 0, dtype, shape, reduce, root)
        return self._prepared(
            call, call.nbytes * self._size if roles.agrees_on_part else call.nbytes, op, other_shapes
        )

    def _prepared(
        self, call: Call, nbytes: int, op: Any, other_shapes: tuple[tuple[int, ...], ...]
    ) -> _engine.Prepared | None:
        plan, roles = None if self._plan is None else self._plan(call, nbytes), ROLES[call.kind]
        if nbytes > self._most if plan is None else plan.path not in _ON_THE_LOOP:
            return None
        assert _engine.compiled is not None
        gives, gets = roles.gives(self._rank, call.root), roles.gets(self._rank, call.root)
        return _engine.compiled.Prepared(
            *(plan, call, self._sort_of(call), op, call.root, other_shapes),
            one_tensor=roles.one_tensor,
            deals=roles.root_gives and not roles.one_tensor,
            gives=gives,
            gets=gets,
            in_place=roles.source is roles.target is Parts.ONE and not roles.root_gives,
        )
