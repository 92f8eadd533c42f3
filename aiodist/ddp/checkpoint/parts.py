"""Parts of an array that belong to one rank, and how they are read from several ranks' files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.errors import CheckpointError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """The elements of an array that this rank has; all ranks' together are the array.

    Args:
        dtype: of the array.
        shape: of the whole.
        parts: the first element's place in the whole, flat, and the elements, flat.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Sequence[tuple[int, Array]]

    def read(self, start: int, stop: int) -> Array:
        """Elements of the whole, flat; those of one rank's parts."""
        return joined(self, [(at, one.size, partial(_given, one)) for at, one in self.parts], start, stop)


@dataclass(frozen=True)
class Stored:
    """An array in a checkpoint, whole, though many ranks may have written it.

    Args:
        dtype: of the array.
        shape: of the whole.
        segments: place of the first element, number of elements, and what reads them from their file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    segments: Sequence[tuple[int, int, Callable[[], Array]]]

    def read(self, start: int, stop: int) -> Array:
        """Elements of the whole, flat.

        Raises:
            CheckpointError: a file is damaged, or lacks.
        """
        return joined(self, self.segments, start, stop)

    def array(self) -> Array:
        """The whole array."""
        return self.read(0, math.prod(self.shape)).reshape(self.shape)


def _given(array: Array) -> Array:
    return array


def joined(
    whole: Parts | Stored, segments: Sequence[tuple[int, int, Callable[[], Array]]], start: int, stop: int
) -> Array:
    """Elements from `start` to `stop`, from the segments that have them."""
    out = np.empty(stop - start, whole.dtype)
    at = start
    for first, count, read in sorted(segments, key=lambda one: one[0]):
        low, high = max(first, start), min(first + count, stop)
        if low >= high or high <= at:
            continue
        if low > at:
            break
        out[at - start : high - start] = read()[at - first : high - first]
        at = high
    if at < stop:
        raise CheckpointError(
            f"elements {at} to {stop} of an array are not there",
            hint="A part of another rank's is needed: read it with Checkpoints.load",
        )
    return out
