"""The laws of the partition: each element is in one shard, shards are even, moves bring what is wanted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aiodist.ddp.sharded.partition import Partition, buckets_of, moves, shards_of

DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)]
arrays = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), min_size=1, max_size=8)


def elements(intervals: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(index, at) for index, start, stop in intervals for at in range(start, stop)]


def everything(sizes: list[tuple[np.dtype, int]]) -> list[tuple[int, int]]:
    return [(index, at) for index, (_, count) in enumerate(sizes) for at in range(count)]


@given(arrays, st.integers(1, 9), st.integers(1, 200), st.booleans())
def test_each_element_belongs_to_one_shard(
    sizes: list[tuple[np.dtype, int]], size: int, cap: int, whole: bool
) -> None:
    buckets = buckets_of(sizes, cap, whole)
    partition = Partition(buckets, size, whole)
    shards = [elements(partition.intervals([shard])) for shard in range(size)]
    assert sorted(one for shard in shards for one in shard) == everything(sizes)
    for shard in range(size):
        for piece in partition.pieces(shard):  # they lie side by side, within the run
            assert 0 <= piece.at <= piece.at + piece.stop - piece.start
            assert piece.at + piece.stop - piece.start <= partition.lengths[piece.bucket][shard]
            if whole:
                assert (piece.start, piece.stop) == (0, sizes[piece.index][1])
    for bucket, lengths in zip(buckets, partition.lengths, strict=True):
        if whole:
            assert sum(lengths) == bucket.count
        else:  # even, and less than one element a shard is padding
            assert len(set(lengths)) == 1
            assert bucket.count <= sum(lengths) < bucket.count + size


@given(
    arrays,
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 3),
    st.integers(1, 200),
    st.booleans(),
    st.sets(st.integers(0, 6)),
)
def test_moves_bring_all_that_somebody_has(
    sizes: list[tuple[np.dtype, int]],
    before: int,
    after: int,
    redundancy: int,
    cap: int,
    whole: bool,
    dead: set[int],
) -> None:
    buckets = buckets_of(sizes, cap, whole)
    old, new = (Partition(buckets, size, whole) for size in (before, after))
    # old ranks that live come first, then newcomers
    living = [rank for rank in range(before) if rank not in dead][:after]
    held = [old.intervals(shards_of(rank, before, redundancy)) for rank in living]
    held += [[] for _ in range(after - len(living))]
    wanted = [new.intervals(shards_of(rank, after, redundancy)) for rank in range(after)]
    found, missing = moves(wanted, held)
    for member in range(after):
        came = elements([(one.index, one.start, one.stop) for one in found if one.target == member])
        lost = [one for one in elements(wanted[member]) if one not in came]
        assert sorted(came + lost) == sorted(elements(wanted[member]))
        assert set(lost) <= set(elements(missing))
    has = [set(elements(one)) for one in held]
    for one in found:
        some = set(elements([(one.index, one.start, one.stop)]))
        assert some <= has[one.source]
        if one.source != one.target:  # nobody is sent what it has
            assert not some & has[one.target]
    assert not set(elements(missing)) & set().union(*has)
    if len(living) == before - 1 and redundancy and before > 1:
        assert not missing, "one death loses nothing where there are copies"


@given(st.integers(1, 9), st.integers(0, 12))
def test_a_rank_holds_its_own_shard_first_and_none_twice(size: int, redundancy: int) -> None:
    for rank in range(size):
        held = shards_of(rank, size, redundancy)
        assert held[0] == rank and len(set(held)) == len(held) == min(redundancy + 1, size)
    for shard in range(size):
        holders = [rank for rank in range(size) if shard in shards_of(rank, size, redundancy)]
        assert len(holders) == min(redundancy + 1, size)
