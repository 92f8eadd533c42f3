"""Memory of the host in the place of an operation's tensors, and what is copied between the two."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.types import Kind

Given = Array | list[Array] | None
Pairs = list[tuple[Array, Array]]
"""(on the device, on the host), of the same shape, with elements."""

Make = Callable[[tuple[int, ...], "np.dtype[np.generic]"], Array]


class Staging:
    """The host's side of one operation.

    Args:
        operation: on tensors of a device.
        rank: this one, in the group.

    Attributes:
        source: in the place of the operation's, contiguous; None before `make`.
        target: likewise; the source itself, where it is that in the operation.
        inward: what is copied to the device when the operation of the host has ended.
    """

    def __init__(self, operation: Operation, rank: int) -> None:
        self.source: Given = None
        self.target: Given = None
        self.inward: Pairs = []
        self._source, self._target = operation.source, operation.target
        call = operation.call
        is_broadcast, is_root = call.kind is Kind.broadcast, call.root == rank
        self._reads = not is_broadcast or is_root  # a broadcast has one tensor, for both
        self._writes = not (is_broadcast and is_root)

    def make(self, make: Make) -> Pairs:
        """Make the memory.

        Args:
            make: gives a contiguous array of a shape and dtype, uninitialised.

        Returns:
            What is copied from the device before the operation of the host begins.
        """
        self.source = _alike(self._source, make)
        same = self._target is self._source
        self.target = self.source if same else _alike(self._target, make)
        self.inward = _pairs(self._target, self.target) if self._writes else []
        return _pairs(self._source, self.source) if self._reads else []


def _alike(given: Given, make: Make) -> Given:
    if isinstance(given, list):
        return [make(array.shape, array.dtype) for array in given]
    return None if given is None else make(given.shape, given.dtype)


def _pairs(given: Given, made: Given) -> Pairs:
    one, other = _listed(given), _listed(made)
    return [(there, here) for there, here in zip(one, other, strict=True) if there.size]


def _listed(given: Given) -> list[Array]:
    return given if isinstance(given, list) else [] if given is None else [given]
