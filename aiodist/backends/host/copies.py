"""A copy into a user's tensor that can be stopped at any moment, while a thread does it.

The await of a receive may be cancelled while a thread copies its message. The tensor is the user's again
when the cancelled await raises, so the loop stops the copy before it takes the receive back. The copy goes in
pieces, so the loop waits for one piece at most (law 7).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from aiodist.backends.arrays.kernels import copy_cost_ns, copy_into
from aiodist.backends.base import Array

PIECE = 256 * 1024
"""Bytes of the largest piece."""


class TensorCopy:
    """One copy. What it reads stays as it is.

    Args:
        pairs: (to, from) arrays of one shape and dtype each, of any strides.
    """

    __slots__ = ("_lock", "_pairs", "stopped")

    def __init__(self, pairs: Sequence[tuple[Array, Array]]) -> None:
        self._pairs = pairs
        self._lock = threading.Lock()  # held while a piece is written
        self.stopped = False

    @property
    def cost_ns(self) -> float:
        """The estimated cost."""
        return sum(copy_cost_ns(to.nbytes) for to, _ in self._pairs)

    def run(self) -> None:
        """Copy, up to the end or until it is stopped."""
        for to, source in self._pairs:
            for part, its_source in pieces(to, source):
                with self._lock:
                    if self.stopped:
                        return
                    copy_into(part, its_source)

    def stop(self) -> None:
        """Have nothing written any more when this returns."""
        with self._lock:
            self.stopped = True


def pieces(to: Array, source: Array) -> Iterator[tuple[Array, Array]]:
    """Two arrays of one shape in pieces, of the same elements each, of at most PIECE bytes of `to`."""
    if to.nbytes <= PIECE:
        yield to, source
        return
    axis = max(range(to.ndim), key=lambda i: (to.shape[i] > 1, abs(to.strides[i])))  # whose rows lie apart
    to, source = to.swapaxes(0, axis), source.swapaxes(0, axis)
    rows = max(1, PIECE * to.shape[0] // to.nbytes)
    for start in range(0, to.shape[0], rows):
        part = slice(start, start + rows)
        yield from pieces(to[part], source[part])
