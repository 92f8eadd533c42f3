"""all_reduce and reduce in two phases: each element in rank order, whatever goes around and however far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.base import Array
from aiodist.backends.host.local.board import SLOTS
from aiodist.backends.host.local.plan import Path
from aiodist.base.types import NO_ROOT, Kind, ReduceOp
from tests.backends.host.local.members import PLACES, Member, call_of, run
from tests.levels import COSTLY

COUNTS = st.sampled_from([0, 1, 5, 17, 1000, 3071, 3072, 3073, 30_000])
PATHS = (Path.inline, Path.bulk)
FACTORS = (2.0, 3.0, 5.0)


def values(rank: int, count: int, seq: int = 0) -> Array:
    """What nobody else has; in another order the sum has other bits."""
    return np.random.default_rng((rank, seq)).standard_normal(count).astype(np.float32)


def total(parts: list[Array], op: ReduceOp) -> Array:
    """All ranks' values, combined in rank order."""
    if op is ReduceOp.PREMUL_SUM:
        parts = [part * np.float32(factor) for part, factor in zip(parts, FACTORS, strict=False)]
    both = np.minimum if op is ReduceOp.MIN else np.add
    found = parts[0]
    for part in parts[1:]:
        found = both(found, part)
    return found / np.float32(len(parts)) if op is ReduceOp.AVG else found


def start(
    member: Member,
    count: int,
    op: ReduceOp = ReduceOp.SUM,
    path: Path = Path.inline,
    places: tuple[str, str] = ("own", ""),
    root: int = NO_ROOT,
    seq: int = 0,
) -> tuple[Any, Array, Any]:
    """Begin a reduction → it, its source, and its target; in place where the second place is ''."""
    source = member.put(values(member.rank, count, seq), places[0])
    target = member.put(np.full(count, -1, np.float32), places[1]) if places[1] else source
    kind = Kind.all_reduce if root == NO_ROOT else Kind.reduce
    given = target if root in (NO_ROOT, member.rank) else None
    factor = FACTORS[member.rank] if op is ReduceOp.PREMUL_SUM else None
    call = call_of(kind, source, seq, op, root)
    return member.begin(call, source, given, path, factor=factor), source, given


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("size", [2, 3])
async def test_all_get_the_same_bits_in_rank_order(hubs: Any, join: Any, size: int) -> None:
    local = hubs(size)

    @settings(max_examples=150)
    @given(
        op=st.sampled_from([ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.PREMUL_SUM]),
        path=st.sampled_from(PATHS),
        count=COUNTS,
        root=st.integers(NO_ROOT, size - 1),
        places=st.tuples(*[st.tuples(st.sampled_from(PLACES), st.sampled_from([*PLACES, ""]))] * size),
        seed=st.integers(0, 1000),
    )
    def check(
        op: ReduceOp, path: Path, count: int, root: int, places: tuple[tuple[str, str], ...], seed: int
    ) -> None:
        group = join(local)
        begun = [start(member, count, op, path, places[member.rank], root) for member in group]
        assert run([(member, begun[member.rank][0]) for member in group], seed) == []
        expected = total([values(rank, count) for rank in range(size)], op)
        for rank, (_, source, target) in enumerate(begun):
            if target is not None:
                assert np.array_equal(target, expected)
            if target is not source:
                assert np.array_equal(source, values(rank, count))
        for member in group:
            member.leave()
            member.close()

    check()


@pytest.mark.parametrize("path", PATHS)
async def test_slots_are_used_again(hubs: Any, join: Any, path: Path) -> None:
    group = join(hubs(3))
    for seq in range(SLOTS + 3):
        count = (seq * 577) % 9000
        places = (PLACES[seq % len(PLACES)], "")
        begun = [start(member, count, path=path, places=places, seq=seq) for member in group]
        assert run([(member, begun[member.rank][0]) for member in group], seq) == []
        expected = total([values(rank, count, seq) for rank in range(3)], ReduceOp.SUM)
        assert all(np.array_equal(target, expected) for _, _, target in begun)


@pytest.mark.parametrize("path", PATHS)
async def test_several_at_a_time_do_not_meet(hubs: Any, join: Any, path: Path) -> None:
    group = join(hubs(2))
    count = 5000
    begun = [[start(member, count, path=path, seq=seq) for seq in range(6)] for member in group]
    assert run([(group[rank], each[0]) for rank in (0, 1) for each in begun[rank]], seed=5) == []
    for seq in range(6):
        expected = total([values(rank, count, seq) for rank in range(2)], ReduceOp.SUM)
        assert all(np.array_equal(begun[rank][seq][2], expected) for rank in (0, 1))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("place", ["own", "segment"])
async def test_who_is_done_may_leave_and_the_others_still_read(
    hubs: Any, join: Any, path: Path, place: str
) -> None:
    group = join(hubs(3))
    begun = [start(member, 9000, path=path, places=(place, "")) for member in group]
    running = [(member, begun[member.rank][0]) for member in group]
    gone = None
    while gone is None:
        gone = next((entry for entry in running if entry[0].step(entry[1])), None)
    running.remove(gone)
    assert len(running) == 2
    gone[0].leave()
    rest = gone[0].hub.empty((8 << 20,), np.dtype(np.uint8))
    rest[...] = 255  # what is still read is not given away
    begun[gone[0].rank][1][...] = -7  # its array is its user's again
    assert run(running, seed=1) == []
    expected = total([values(rank, 9000) for rank in range(3)], ReduceOp.SUM)
    for member, _ in running:
        assert np.array_equal(begun[member.rank][2], expected)


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_overwritten_where_one_is_missing(hubs: Any, join: Any, path: Path) -> None:
    group = join(hubs(3))
    begun = [start(member, 9000, path=path, places=("segment", "")) for member in group[:2]]
    running = [(member, begun[member.rank][0]) for member in group[:2]]
    group[2].leave()
    assert run(running) == running
    assert all(np.array_equal(begun[rank][1], values(rank, 9000)) for rank in range(2))


async def test_only_the_root_collects(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    begun = [start(member, 9000, path=Path.bulk, root=1) for member in group]
    assert run([(member, begun[member.rank][0]) for member in group]) == []
    for rank, (_, source, target) in enumerate(begun):
        parts = [values(other, 9000) for other in range(3)]
        assert (target is None) == (rank != 1)
        assert np.array_equal(source, total(parts, ReduceOp.SUM) if rank == 1 else parts[rank])
