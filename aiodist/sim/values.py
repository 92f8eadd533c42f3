"""The values of a collective's tensors, where they are carried: small ones, and all that is no user's tensor.

A large tensor is a size. A small one may be what a program decides by (a loss, a flag to stop, an object), so
it gets what it would get in a real job, in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from aiodist.backends.arrays.kernels import combine, finish, scale
from aiodist.backends.base import Array, Given, Operation
from aiodist.backends.buffers import bounds_of
from aiodist.base.operations import ROLES, Parts, origins
from aiodist.base.types import Call, ReduceOp


class Values:
    """What the members of one collective gave.

    Args:
        call: the collective.
        size: members.
    """

    def __init__(self, call: Call, size: int) -> None:
        self._call = call
        self._size = size
        self._given: dict[int, tuple[Array, Sequence[int] | None]] = {}
        self._reduced: dict[range, Array] = {}
        self._joined: Array | None = None

    def give(self, rank: int, operation: Operation) -> None:
        """Keep what a member gives, as it is now.

        Args:
            rank: group rank.
        """
        roles = ROLES[self._call.kind]
        if not roles.gives(rank, self._call.root):
            return
        source = operation.source
        if source is None and roles.one_tensor:
            source = operation.target
        array = _flat_copy(source)
        if operation.factor is not None:
            scale(array, operation.factor)
        self._given[rank] = array, operation.source_sizes

    def take(self, rank: int, operation: Operation) -> None:
        """Write what a member gets into its tensors. All that it depends on has been given."""
        call = self._call
        roles = ROLES[call.kind]
        if not roles.gets(rank, call.root) or operation.target is None:
            return
        if roles.target is Parts.EACH:
            _write(operation.target, self._from_each(rank))
        elif roles.reduces:
            whole = self._reduction(*origins(call.kind, rank, self._size, call.root))
            _write(operation.target, self._part(whole, rank) if roles.cut else whole)
        elif roles.source is Parts.EACH:
            _write(operation.target, self._part(self._given[call.root][0], rank, self._given[call.root][1]))
        else:
            _write(operation.target, self._given[call.root][0])

    def _from_each(self, rank: int) -> Array:
        if ROLES[self._call.kind].source is Parts.ONE:
            if self._joined is None:
                self._joined = np.concatenate([self._given[member][0] for member in range(self._size)])
            return self._joined
        return np.concatenate([self._part(*self._one(member, rank)) for member in range(self._size)])

    def _one(self, member: int, rank: int) -> tuple[Array, int, Sequence[int] | None]:
        array, sizes = self._given[member]
        return array, rank, sizes

    def _part(self, array: Array, rank: int, sizes: Sequence[int] | None = None) -> Array:
        if sizes is None:
            sizes = self._given[min(self._given)][1]
        bounds = bounds_of(array.size, sizes, self._size)
        return array[bounds[rank] : bounds[rank + 1]]

    def _reduction(self, members: range) -> Array:
        if members not in self._reduced:
            op = self._call.combine
            assert op is not None
            whole = self._given[members[0]][0].copy()
            for member in members[1:]:
                combine(whole, self._given[member][0], whole, op)
            if self._call.reduce is ReduceOp.AVG:
                finish(whole, ReduceOp.AVG, len(members))
            self._reduced[members] = whole
        return self._reduced[members]


def _flat_copy(given: Given) -> Array:
    if isinstance(given, list):
        return np.concatenate([array.reshape(-1) for array in given])
    assert given is not None
    return np.array(given).reshape(-1)


def _write(target: Given, values: Array) -> None:
    if isinstance(target, list):
        bounds = np.cumsum([0, *(array.size for array in target)]).tolist()
        for array, (low, high) in zip(target, pairwise(bounds), strict=True):
            array[...] = values[low:high].reshape(array.shape)
    else:
        assert target is not None
        target[...] = values.reshape(target.shape)


def copy_message(source: Any) -> Array:
    """The bytes of a message, as they are now."""
    return _flat_copy(source)


def write_message(target: Any, values: Array) -> None:
    """Write a message into its receiver's tensor."""
    _write(target, values)
