"""The buckets of gradients that travel together. Pure: the same arrays give the same buckets on every rank.

Source of the sizes: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020, section 3.2; torch's defaults are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aiodist.base.errors import UsageError, shown

MIB = 1 << 20
FIRST_NBYTES = MIB  # the first bucket is small, so that communication starts early in the backward pass


@dataclass(frozen=True)
class Slot:
    """The place of one array in its bucket: elements `start` to `stop`."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Arrays of one dtype that are reduced as one."""

    dtype: np.dtype[Any]
    slots: tuple[Slot, ...]

    @property
    def count(self) -> int:
        """The number of elements in the whole bucket."""
        return self.slots[-1].stop


def plan(arrays: Iterable[tuple[np.dtype[Any], int]], cap_nbytes: int) -> list[Bucket]:
    """Divide arrays into buckets.

    Arrays are taken in reverse order, since a backward pass yields the last layer's gradient first. A
    bucket holds one dtype, and is closed once it has reached its limit: 1 MiB for a dtype's first, then
    `cap_nbytes`. An array is never divided, so a bucket may exceed its limit by one array.

    Args:
        arrays: dtype and number of elements of each.
        cap_nbytes: the limit.

    Returns:
        Buckets in the order in which a backward pass in reverse order fills them.
    """
    filling: dict[np.dtype[Any], list[Slot]] = {}
    limits: dict[np.dtype[Any], int] = {}
    buckets: list[Bucket] = []
    for index, (dtype, count) in reversed(list(enumerate(arrays))):
        slots = filling.setdefault(dtype, [])
        start = slots[-1].stop if slots else 0
        slots.append(Slot(index, start, start + count))
        if (start + count) * dtype.itemsize >= limits.get(dtype, min(FIRST_NBYTES, cap_nbytes)):
            buckets.append(Bucket(dtype, tuple(filling.pop(dtype))))
            limits[dtype] = cap_nbytes
    buckets += [Bucket(dtype, tuple(slots)) for dtype, slots in filling.items()]
    return sorted(buckets, key=lambda bucket: -bucket.slots[-1].index)


def digest(buckets: Iterable[Bucket]) -> str:
    """A short text that two plans have in common only if they are equal."""
    words = [f"{b.dtype.name} {[(s.index, s.start, s.stop) for s in b.slots]}" for b in buckets]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()


def cap_of(mebibytes: Any) -> int:
    """A limit in MiB as bytes.

    Raises:
        UsageError: it is no positive number.
    """
    try:
        if float(mebibytes) > 0:
            return int(float(mebibytes) * MIB)
    except Exception:  # of whatever kind of number it is; an infinite one, too
        pass
    raise UsageError(f"bucket_cap_mb must be a positive number of MiB, got {shown(mebibytes)}")
