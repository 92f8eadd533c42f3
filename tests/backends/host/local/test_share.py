"""Operations in one phase, against what each rank has to have in the end."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.base import Array
from aiodist.backends.host.local import plan
from aiodist.backends.host.local.board import SLOTS
from aiodist.backends.host.local.plan import Path
from aiodist.base.types import NO_ROOT, Kind, ReduceOp
from tests.backends.host.local.members import PLACES, Member, call_of, run

ROOTED = (Kind.broadcast, Kind.gather, Kind.scatter)
KINDS = (*ROOTED, Kind.all_gather, Kind.all_to_all, Kind.reduce_scatter)
COUNTS = st.sampled_from([0, 1, 7, 1024, 1025, 5000, 17_000])


def values(rank: int, count: int, salt: int = 0) -> Array:
    """What nobody else has."""
    return np.arange(count, dtype=np.int64) + 1_000_000 * (rank + 1) + 100_000_000 * salt


def buffers(kind: Kind, rank: int, size: int, count: int, root: int, salt: int = 0) -> tuple[Any, Any, Any]:
    """A rank's source and target, and what the target holds in the end; parts have `count` elements."""
    every = [values(other, count, salt) for other in range(size)]
    whole = [values(other, count * size, salt) for other in range(size)]
    mine = slice(rank * count, (rank + 1) * count)
    blank, blanks = np.full(count, -1), np.full(count * size, -1)
    if kind is Kind.broadcast:
        return (every[rank], None, every[root]) if rank == root else (None, blank, every[root])
    if kind is Kind.scatter:
        return whole[rank] if rank == root else None, blank, whole[root][mine]
    if kind is Kind.gather:
        return every[rank], blanks if rank == root else None, np.concatenate(every)
    if kind is Kind.all_gather:
        return every[rank], blanks, np.concatenate(every)
    if kind is Kind.all_to_all:
        return whole[rank], blanks, np.concatenate([part[mine] for part in whole])
    return whole[rank], blank, np.sum(whole, axis=0)[mine]


def start(
    member: Member,
    kind: Kind,
    count: int,
    root: int,
    path: Path,
    place: str = "own",
    seq: int = 0,
) -> tuple[Any, Any, Any]:
    """Begin an operation → it, its target, and what that must hold in the end."""
    source, target, expected = buffers(kind, member.rank, member.board.size, count, root, seq)
    source, target = (None if array is None else member.put(array, place) for array in (source, target))
    reduce = ReduceOp.SUM if kind is Kind.reduce_scatter else None
    whole = count * member.board.size if kind in (Kind.all_to_all, Kind.reduce_scatter) else count
    call = call_of(kind, np.zeros(whole, np.int64), seq, reduce, root if kind in ROOTED else NO_ROOT)
    return member.begin(call, source, target, path), target, expected


async def test_every_rank_gets_what_is_its_own(hubs: Any, join: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(plan, "INLINE_BLOCK", 4096)
    local = hubs(3)

    @settings(max_examples=150)
    @given(
        kind=st.sampled_from(KINDS),
        path=st.sampled_from([Path.inline, Path.bulk]),
        count=COUNTS,
        root=st.integers(0, 2),
        places=st.tuples(*[st.sampled_from(PLACES)] * 3),
        seed=st.integers(0, 1000),
    )
    def check(kind: Kind, path: Path, count: int, root: int, places: tuple[str, ...], seed: int) -> None:
        group = join(local)
        begun = [
            start(member, kind, count, root, path, place) for member, place in zip(group, places, strict=True)
        ]
        running = [(member, exchange) for member, (exchange, _, _) in zip(group, begun, strict=True)]
        assert run(running, seed) == []
        for _, target, expected in begun:
            if target is not None:
                assert np.array_equal(target, expected)
        for member in group:
            member.leave()
            member.close()

    check()


@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
@pytest.mark.parametrize("sizes", [[3, 0, 9000], [0, 0, 0], [5000, 1, 2]])
async def test_parts_of_different_sizes(hubs: Any, join: Any, path: Path, sizes: list[int]) -> None:
    group = join(hubs(3))
    bounds = list(pairwise(accumulate(sizes, initial=0)))
    dealt = values(1, sum(sizes))
    targets = [np.full(size, -1) for size in sizes]
    running = []
    for member, target in zip(group, targets, strict=True):
        source = dealt if member.rank == 1 else None
        call = call_of(Kind.scatter, np.zeros(0, np.int64), 0, root=1)
        running.append((member, member.begin(call, source, target, path, source_sizes=sizes)))
    assert run(running) == []
    for target, (low, high) in zip(targets, bounds, strict=True):
        assert np.array_equal(target, dealt[low:high])
    whole = [np.full(sum(sizes), -1) for _ in group]
    running = []
    for member, target in zip(group, whole, strict=True):
        call = call_of(Kind.all_gather, np.zeros(0, np.int64), 1)
        source = values(member.rank, sizes[member.rank])
        running.append((member, member.begin(call, source, target, path, target_sizes=sizes)))
    assert run(running) == []
    expected = np.concatenate([values(rank, size) for rank, size in enumerate(sizes)])
    assert all(np.array_equal(target, expected) for target in whole)


async def test_parts_that_lie_side_by_side_in_the_home_are_read_there(hubs: Any, join: Any) -> None:
    group = join(hubs(2))
    begun = [start(member, Kind.all_to_all, 500, NO_ROOT, Path.inline, "segment") for member in group]
    assert all(exchange.exposed for exchange, _, _ in begun)
    # Elsewhere they would have to be in one piece.
    segments = [member.put(values(member.rank, 1100), "segment") for member in group]
    running = [(member, begun[member.rank][0]) for member in group]
    targets = [[np.full(500, -1), np.full(500, -1)] for _ in group]
    for member, segment, target in zip(group, segments, targets, strict=True):
        call = call_of(Kind.all_to_all, np.zeros(1000, np.int64), 1)
        running.append((member, member.begin(call, [segment[:500], segment[600:]], target)))
    assert not any(exchange.exposed for _, exchange in running[2:])
    assert run(running) == []
    for rank, target in enumerate(targets):
        low = 600 * rank
        assert np.array_equal(target, [values(other, 1100)[low : low + 500] for other in range(2)])
        assert np.array_equal(begun[rank][1], begun[rank][2])


async def test_root_runs_ahead_and_leaves_and_all_is_there_for_who_comes_later(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    for seq in range(SLOTS):
        exchange, _, _ = start(first, Kind.broadcast, 1 + 100 * seq, 0, Path.inline, seq=seq)
        assert run([(first, exchange)]) == []
    assert not first.board.free(SLOTS)
    first.leave()
    first.hub.empty((1 << 20,), np.dtype(np.uint8))[...] = 255  # memory that is still read is not given away
    begun = [start(second, Kind.broadcast, 1 + 100 * seq, 0, Path.inline, seq=seq) for seq in range(SLOTS)]
    assert run([(second, exchange) for exchange, _, _ in begun], seed=3) == []
    assert all(np.array_equal(target, expected) for _, target, expected in begun)
    second.leave()
    assert not first.board.slots.closed
    first.hub.take(64)
    assert first.board.slots.closed


async def test_slots_are_used_again(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    for seq in range(2 * SLOTS + 3):
        kind, count = KINDS[seq % len(KINDS)], (seq * 131) % 1500
        begun = [start(member, kind, count, seq % 3, Path.inline, seq=seq) for member in group]
        assert run([(member, begun[member.rank][0]) for member in group], seq) == []
        for _, target, expected in begun:
            assert target is None or np.array_equal(target, expected)


@pytest.mark.parametrize("place", ["own", "segment"])
@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
async def test_source_is_the_users_again_only_when_nobody_reads_it(
    hubs: Any, join: Any, path: Path, place: str
) -> None:
    first, second = join(hubs(2))
    mine, _, _ = start(first, Kind.broadcast, 17_000, 0, path, place)
    source = mine.send[0]
    waits = run([(first, mine)])
    assert bool(waits) == (place == "segment" or path is Path.bulk)
    if not waits:
        source[...] = -7
    theirs, target, expected = start(second, Kind.broadcast, 17_000, 0, path)
    left = run([*waits, (second, theirs)])
    assert left == []
    assert np.array_equal(target, expected)


async def test_nothing_is_taken_where_one_is_missing(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    begun = [start(member, Kind.all_gather, 40, NO_ROOT, Path.inline) for member in group[:2]]
    running = [(member, begun[member.rank][0]) for member in group[:2]]
    group[2].leave()
    assert run(running) == running
    assert all((target == -1).all() for _, target, _ in begun)


async def test_factor_multiplies_what_is_given_and_not_the_source(hubs: Any, join: Any) -> None:
    group = join(hubs(2))
    for seq, path in enumerate((Path.inline, Path.bulk)):
        sources = [np.arange(8.0) + 10 * rank for rank in range(2)]
        targets = [np.zeros(4) for _ in group]
        running = []
        for member, source, target in zip(group, sources, targets, strict=True):
            call = call_of(Kind.reduce_scatter, source, seq, ReduceOp.PREMUL_SUM)
            factor = 2.0 + member.rank
            running.append((member, member.begin(call, source, target, path, factor=factor)))
        assert run(running) == []
        total = np.arange(8.0) * 2 + (np.arange(8.0) + 10) * 3
        assert np.array_equal(np.concatenate(targets), total)
        assert np.array_equal(sources[1], np.arange(8.0) + 10)


@pytest.mark.parametrize("count", [0, 1, 600, 3000])  # in the slot's room, and beyond
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PREMUL_SUM])
@pytest.mark.parametrize("place", PLACES)
async def test_reduce_each_in_rank_order(hubs: Any, join: Any, op: ReduceOp, count: int, place: str) -> None:
    group = join(hubs(3))
    factors = [2.0, 3.0, 5.0]
    sources = [np.random.default_rng(rank).standard_normal(count) for rank in range(3)]
    tensors = [member.put(source, place) for member, source in zip(group, sources, strict=True)]
    running = []
    for member, tensor in zip(group, tensors, strict=True):
        call = call_of(Kind.all_reduce, tensor, 0, op)
        factor = factors[member.rank] if op is ReduceOp.PREMUL_SUM else None
        running.append((member, member.begin(call, tensor, tensor, Path.direct, factor=factor)))
    assert run(running) == []
    if op is ReduceOp.PREMUL_SUM:
        sources = [source * factor for source, factor in zip(sources, factors, strict=True)]
    both = np.maximum if op is ReduceOp.MAX else np.add
    expected = both(both(sources[0], sources[1]), sources[2]) / (3 if op is ReduceOp.AVG else 1)
    assert all(np.array_equal(tensor, expected) for tensor in tensors)
