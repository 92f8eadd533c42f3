"""The memory that an operation works on, and the copies into it before and out of it after.

Backends work on contiguous arrays of one axis. Where the user's array is contiguous it *is* that memory; a
strided one is staged, and written back when the operation has ended well (gloo and NCCL silently misread
strided tensors). All of it is geometry, and the same for tensors on a device, whose memory is not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from aiodist.backends.arrays.kernels import copy_cost_ns, copy_into, cost_ns, finish, scale
from aiodist.backends.base import Array, Given, Operation, flat
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import ReduceOp

Allocate = Callable[[int, "np.dtype[np.generic]"], Array]
"""Maker of an uninitialised contiguous array of so many elements."""


@dataclass(slots=True)
class Buffers:
    """The memory of one operation on this rank. All arrays have one axis and are contiguous.

    It belongs to the backend from the call until the operation has ended: some of it is the user's own.

    Args:
        allocate: makes what is staged.
        own: never the user's own arrays: everything is staged.
        factor: what `source` is multiplied by once it is filled (PREMUL_SUM), or None.

    Attributes:
        source: all that is read, in one array; None where there is nothing, or it lies apart in `send`.
        target: all that is written, likewise. May be `source` itself (in place).
        send: the parts that this rank gives: one that all get alike, or one for each member; none where it
            gives nothing.
        recv: the parts that it is given, likewise.
        before: (to, from) copies that fill it.
        after: (to, from) copies that empty it.
        result: what is touched last, before `after`, or None: divided by `divisor` (AVG; 0: not at all), and
            with `one_nan` every NaN made the same, where ranks compute the result each for itself (law 3).
    """

    allocate: Allocate
    own: bool = False
    factor: float | None = None
    source: Array | None = None
    target: Array | None = None
    send: list[Array] = field(default_factory=list)
    recv: list[Array] = field(default_factory=list)
    before: list[tuple[Array, Array]] = field(default_factory=list)
    after: list[tuple[Array, Array]] = field(default_factory=list)
    result: Array | None = None
    divisor: int = 0
    one_nan: bool = False

    # ── while the operation runs ─────────────────────────────────────────────────────────────────────

    def fill(self) -> None:
        """Do the copies before, and multiply."""
        for to, source in self.before:
            copy_into(to, source)
        if self.factor is not None:
            assert self.source is not None
            scale(self.source, self.factor)

    def empty(self) -> None:
        """Give the result its last touch, and do the copies after."""
        if self.result is not None:
            finish(self.result, ReduceOp.AVG, self.divisor, one_nan=self.one_nan)
        for to, source in self.after:
            copy_into(to, source)

    def fill_ns(self) -> float:
        """The estimated cost of `fill`; 0 where it does nothing."""
        cost = sum(copy_cost_ns(to.nbytes) for to, _ in self.before)
        if self.factor is not None and self.source is not None:
            cost += cost_ns(self.source.nbytes, self.source.dtype, ReduceOp.SUM)
        return cost

    def empty_ns(self) -> float:
        """The estimated cost of `empty`; 0 where it does nothing."""
        cost = sum(copy_cost_ns(to.nbytes) for to, _ in self.after)
        if self.result is not None and (self.divisor > 1 or self.one_nan):
            cost += cost_ns(self.result.nbytes, self.result.dtype, ReduceOp.SUM)
        return cost

    # ── while it is made ─────────────────────────────────────────────────────────────────────────────

    def read(self, given: Array | list[Array], own: bool = False) -> Array:
        """All that is read, one array after the other; with `own` never the user's."""
        arrays = given if isinstance(given, list) else [given]
        if len(arrays) == 1 and arrays[0].flags.c_contiguous and not (own or self.own):
            return flat(arrays[0])
        staging = self.allocate(sum(array.size for array in arrays), arrays[0].dtype)
        self.before += zip(shaped(staging, arrays), arrays, strict=True)
        return staging

    def write(self, given: Array | list[Array]) -> Array:
        """All that is written, likewise."""
        arrays = given if isinstance(given, list) else [given]
        if len(arrays) == 1 and arrays[0].flags.c_contiguous and not self.own:
            return flat(arrays[0])
        staging = self.allocate(sum(array.size for array in arrays), arrays[0].dtype)
        self.after += zip(arrays, shaped(staging, arrays), strict=True)
        return staging

    def in_place(self, source: Given, target: Given, reads: bool = True, writes: bool = True) -> Array:
        """One array in the place of both, which may be one: `source` is copied to where `target` lies."""
        assert isinstance(source, np.ndarray)
        assert isinstance(target, np.ndarray)
        staged = self.own or not target.flags.c_contiguous
        array = self.allocate(target.size, target.dtype) if staged else flat(target)
        if reads and (staged or source is not target):
            self.before.append((array.reshape(target.shape), source))
        if writes and staged:
            self.after.append((target, array.reshape(target.shape)))
        return array


def buffers(
    operation: Operation,
    rank: int,
    size: int,
    allocate: Allocate = np.empty,
    *,
    joined: bool = True,
    own: bool = False,
) -> Buffers:
    """The memory of an operation on one member, as parts that it gives and parts that it is given.

    Args:
        operation: the group's.
        rank: this process's group rank, of `size`.
        allocate: makes what is staged.
        joined: all of `send` lies in `source`, and all of `recv` in `target`; lists of tensors are copied for
            that. Else the tensors of a list stay where they are.
        own: everything is staged, and nothing multiplied: for a caller that hands it to another backend.
    """
    made = Buffers(allocate, own, None if own else operation.factor)
    call, source, target = operation.call, operation.source, operation.target
    roles = ROLES[call.kind]
    gives, gets = roles.gives(rank, call.root), roles.gets(rank, call.root)
    alone = made.factor is None and not joined  # nothing asks for one array

    if roles.one_tensor:
        source = target = source if target is None else target
    scaled_there = made.factor is not None and not roles.cut  # multiplied where the result goes
    if isinstance(target, np.ndarray) and (source is target or scaled_there):
        both = made.in_place(source, target, gives, gets)
        made.source = made.target = both
        made.send, made.recv = [both] * gives, [both] * gets
        return made
    if gives and source is not None:
        if alone and isinstance(source, list):
            made.send = [made.read(array) for array in source]
        else:
            made.source = array = made.read(source, own=made.factor is not None)
            each = roles.source is Parts.EACH
            made.send = cut(array, operation.source_sizes, size) if each else [array]
    if gets and target is not None:
        if alone and isinstance(target, list):
            made.recv = [made.write(array) for array in target]
        else:
            made.target = array = made.write(target)
            each = roles.target is Parts.EACH
            made.recv = cut(array, operation.target_sizes, size) if each else [array]
    return made


def cut(array: Array, sizes: Sequence[int] | None, size: int) -> list[Array]:
    """An array in `size` parts, equal ones unless their sizes are given."""
    return [array[low:high] for low, high in pairwise(bounds_of(array.size, sizes, size))]


def bounds_of(count: int, sizes: Sequence[int] | None, size: int) -> list[int]:
    """The start of each of `size` parts of `count` elements, and the end of the last one."""
    return list(accumulate([count // size] * size if sizes is None else sizes, initial=0))


def shaped(staging: Array, arrays: Sequence[Array]) -> list[Array]:
    """A contiguous array as one for each of a list, in their shapes."""
    ends = accumulate((array.size for array in arrays), initial=0)
    return [
        staging[low:high].reshape(array.shape)
        for array, (low, high) in zip(arrays, pairwise(ends), strict=True)
    ]
