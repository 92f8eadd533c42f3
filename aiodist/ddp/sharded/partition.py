"""The partition of arrays into shards, one for each rank, and what moves when it changes. Pure.

Arrays travel in buckets of one dtype. Each bucket is cut into as many runs of elements as there are ranks;
run r of every bucket together are shard r. So one reduce_scatter of a bucket gives each rank its run, and one
all_gather gives all ranks the bucket: together they carry the bytes of one all_reduce.

Source: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aiodist.ddp.buckets import Bucket, Slot, plan


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of an array, flat, in a shard.

    Args:
        index: of the array.
        bucket: in which it travels.
        at: the place of its first element in the shard's run of that bucket.
    """

    index: int
    start: int
    stop: int
    bucket: int
    at: int


@dataclass(frozen=True)
class ShardMove:
    """Elements of an array that one member has and another one needs; both are the same where it has them."""

    source: int
    target: int
    index: int
    start: int
    stop: int


Interval = tuple[int, int, int]
"""Index of an array, and elements from and to."""


class Partition:
    """The shards of some arrays.

    Args:
        buckets: of the arrays.
        size: number of shards.
        whole: each array belongs to one shard as a whole; else shards have the same number of elements.

    Attributes:
        lengths: for each bucket, the elements of each shard's run; with padding at the end, where all runs
            have the same length.
    """

    def __init__(self, buckets: Sequence[Bucket], size: int, whole: bool = False) -> None:
        self.size = size
        self._buckets = buckets
        cut = _by_arrays if whole else _evenly
        self.lengths: list[tuple[int, ...]] = [cut(bucket, size) for bucket in buckets]

    def pieces(self, shard: int) -> list[Piece]:
        """The elements of a shard, by bucket and place; padding is none of them."""
        found = []
        for number, bucket in enumerate(self._buckets):
            first = sum(self.lengths[number][:shard])
            last = first + self.lengths[number][shard]
            for slot in bucket.slots:
                start, stop = max(slot.start, first), min(slot.stop, last)
                if start < stop:
                    found.append(
                        Piece(slot.index, start - slot.start, stop - slot.start, number, start - first)
                    )
        return found

    def intervals(self, shards: Iterable[int]) -> list[Interval]:
        """The elements of several shards."""
        return [(one.index, one.start, one.stop) for shard in shards for one in self.pieces(shard)]


def buckets_of(arrays: Sequence[tuple[np.dtype[Any], int]], cap_nbytes: int, whole: bool) -> list[Bucket]:
    """The buckets of arrays: of about `cap_nbytes`, or, where arrays stay whole, one for each dtype.

    Args:
        arrays: dtype and number of elements of each.
    """
    if not whole:
        return plan(arrays, cap_nbytes)
    filling: dict[np.dtype[Any], list[Slot]] = {}
    for index, (dtype, count) in enumerate(arrays):
        slots = filling.setdefault(dtype, [])
        start = slots[-1].stop if slots else 0
        slots.append(Slot(index, start, start + count))
    return [Bucket(dtype, tuple(slots)) for dtype, slots in filling.items()]


def shards_of(rank: int, size: int, redundancy: int) -> list[int]:
    """The shards that a rank holds: its own, and copies of those before it."""
    return [(rank - back) % size for back in range(min(redundancy, size - 1) + 1)]


def moves(
    wanted: Sequence[Iterable[Interval]], held: Sequence[Iterable[Interval]]
) -> tuple[list[ShardMove], list[Interval]]:
    """The moves of elements between members after which each has what it wants.

    A member that has an element itself moves it to itself; else the first that has it sends it.

    Args:
        wanted: of each member.
        held: of each member.

    Returns:
        the moves, by target and in the order of what it wants; and what no member has.
    """
    having: dict[int, list[tuple[int, int, int]]] = {}  # member, start, stop
    for member, intervals in enumerate(held):
        for index, start, stop in intervals:
            having.setdefault(index, []).append((member, start, stop))
    found, missing = [], []
    for target, intervals in enumerate(wanted):
        for index, start, stop in intervals:
            at = start
            while at < stop:
                here = [one for one in having.get(index, ()) if one[1] <= at < one[2]]
                if not here:
                    later = [one[1] for one in having.get(index, ()) if at < one[1] < stop]
                    end = min(later, default=stop)
                    missing.append((index, at, end))
                else:
                    source, _, last = min(here, key=lambda one: (one[0] != target, one[0]))
                    end = min(stop, last)
                    found.append(ShardMove(source, target, index, at, end))
                at = end
    return found, missing


def _evenly(bucket: Bucket, size: int) -> tuple[int, ...]:
    return (-(-bucket.count // size),) * size


def _by_arrays(bucket: Bucket, size: int) -> tuple[int, ...]:
    """Runs of whole arrays: an array belongs to the shard in whose even run its middle lies."""
    lengths = [0] * size
    for slot in bucket.slots:
        middle = slot.start + slot.stop
        shard = min(size - 1, middle * size // (2 * bucket.count)) if bucket.count else 0
        lengths[shard] += slot.stop - slot.start
    return tuple(lengths)
