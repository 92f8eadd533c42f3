"""Operations whose data fits the slots, against what each rank has to have in the end."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.base import Array
from aiodist.backends.host.local.board import SLOTS
from aiodist.backends.host.local.plan import Path, plan_of
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp
from tests.backends.host.local.members import PLACES, SMALL, Member, run
from tests.levels import COSTLY

KINDS = [kind for kind, roles in ROLES.items() if roles.source is not Parts.NONE and not roles.message]
KINDS.remove(Kind.all_reduce)
SIZE = 3
INT64 = np.dtype(np.int64)


def values(rank: int, count: int, seq: int) -> Array:
    """What no other rank has, and no other operation."""
    return np.arange(count, dtype=np.int64) + 1_000_000 * (rank + 1) + 100_000_000 * seq


class Case:
    """One operation on all members.

    Args:
        kind: the collective.
        sizes: elements of each member's part.
        uneven: they are passed, as parts that may differ.
    """

    def __init__(self, kind: Kind, sizes: list[int], root: int, seq: int, uneven: bool) -> None:
        roles = ROLES[kind]
        self.kind, self.sizes, self.seq = kind, sizes, seq
        self.root = root if roles.rooted else NO_ROOT
        self.uneven = uneven
        self.reduce = ReduceOp.SUM if roles.reduces else None
        one = sizes[0] if roles.agrees_on_part or not roles.cut else sum(sizes)
        self.call = Call(kind, seq, INT64, (0 if uneven else one,), self.reduce, self.root)

    def given(self, rank: int) -> Array | None:
        roles = ROLES[self.kind]
        if not roles.gives(rank, self.root):
            return None
        return values(rank, self.sizes[rank] if roles.source is Parts.ONE else sum(self.sizes), self.seq)

    def got(self, rank: int) -> Array | None:
        roles = ROLES[self.kind]
        if not roles.gets(rank, self.root):
            return None
        sources = [source for source in map(self.given, range(SIZE)) if source is not None]
        if roles.source is Parts.EACH:
            low, high = list(pairwise(accumulate(self.sizes, initial=0)))[rank]
            sources = [source[low:high] for source in sources]
        return np.sum(sources, axis=0) if roles.reduces else np.concatenate(sources)

    def begin(self, member: Member, place: str) -> tuple[Any, Any, Any]:
        """Begin it → the exchange, its target, and what that must hold in the end."""
        roles, expected = ROLES[self.kind], self.got(member.rank)
        source, target = self.given(member.rank), None if expected is None else np.full(expected.size, -1)
        source, target = (None if array is None else member.put(array, place) for array in (source, target))
        more: dict[str, Any] = {}
        if self.uneven:
            more["source_sizes" if roles.source is Parts.EACH else "target_sizes"] = self.sizes
        passed = target if roles.one_tensor and source is None else source
        exchange = member.begin(self.call, passed, target, Path.slot, **more)
        return exchange, target, expected


@pytest.mark.slow(COSTLY)
async def test_every_rank_gets_what_is_its_own(hubs: Any, join: Any) -> None:
    local = hubs(SIZE)
    operations = st.tuples(
        st.sampled_from(KINDS),
        st.lists(st.sampled_from([0, 1, 7, 300]), min_size=SIZE, max_size=SIZE),
        st.integers(0, SIZE - 1),
        st.tuples(*[st.sampled_from(PLACES)] * SIZE),
    )

    @settings(max_examples=150)
    @given(operations=st.lists(operations, min_size=1, max_size=4), seed=st.integers(0, 1000))
    def check(operations: Any, seed: int) -> None:
        group = join(local)
        begun = []
        for seq, (kind, sizes, root, places) in enumerate(operations):
            uneven = len(set(sizes)) > 1 and ROLES[kind].cut and kind is not Kind.all_to_all
            case = Case(kind, sizes if uneven else sizes[:1] * SIZE, root, seq, uneven)
            begun += [
                (member, *case.begin(member, place)) for member, place in zip(group, places, strict=True)
            ]
        assert run([(member, exchange) for member, exchange, _, _ in begun], seed) == []
        for _, _, target, expected in begun:
            assert expected is None or np.array_equal(target, expected)
        for member in group:
            assert member.disagreed == []
            member.leave()
            member.close()

    check()


@pytest.mark.parametrize("kind", KINDS)
async def test_slots_are_used_again_with_other_arrays(hubs: Any, join: Any, kind: Kind) -> None:
    group = join(hubs(SIZE))
    for seq in (0, SLOTS, 2 * SLOTS):
        case = Case(kind, [5] * SIZE, 1, seq, False)
        begun = [(member, *case.begin(member, "own")) for member in group]
        assert run([(member, exchange) for member, exchange, _, _ in begun]) == []
        assert all(expected is None or np.array_equal(target, expected) for _, _, target, expected in begun)
        for _, exchange, _, _ in begun:
            exchange.drop()  # which is used again


@pytest.mark.parametrize("kind", KINDS)
async def test_parts_may_lie_in_one_array(hubs: Any, join: Any, kind: Kind) -> None:
    group = join(hubs(SIZE))
    case = Case(kind, [4] * SIZE, 2, 0, False)
    running, targets = [], []
    for member in group:
        source, expected = case.given(member.rank), case.got(member.rank)
        target = None if expected is None else np.full(expected.size, -1)
        plan = plan_of(member.board, case.call, Path.slot, SMALL, cast("Any", member))
        exchange = plan.begin(0, [] if source is None else [source], [] if target is None else [target])
        exchange.publish()
        running.append((member, exchange))
        targets.append((target, expected))
    assert run(running) == []
    for target, expected in targets:
        assert expected is None or (target is not None and np.array_equal(target, expected))
    for _, exchange in running:
        exchange.drop()


@pytest.mark.parametrize("kind", KINDS)
async def test_arrays_that_do_not_fit_are_refused(hubs: Any, join: Any, kind: Kind) -> None:
    """What C reads later has to be there."""
    (member, *_) = join(hubs(SIZE))
    case = Case(kind, [4] * SIZE, 0, 0, False)
    plan = plan_of(member.board, case.call, Path.slot, SMALL, cast("Any", member))
    source, expected = case.given(0), case.got(0)
    for side, array in (("send", source), ("recv", expected)):
        if array is None:
            continue
        for wrong in (array[:-1], array.astype(np.int32), np.repeat(array, 2)[::2]):
            with pytest.raises(ValueError, match=r"in the place of|no contiguous array"):
                plan.begin(0, *(([wrong], []) if side == "send" else ([], [wrong])))
        if ROLES[kind].source is Parts.EACH and side == "send":
            with pytest.raises(ValueError, match="parts for 3 members"):
                plan.begin(0, [array[:4], array[4:8]], [])
    odd: list[Any] = [[None], [None] * SIZE, [source] * 9]
    for arrays in odd:
        with pytest.raises(ValueError, match=r"parts for 3 members|no contiguous array"):
            plan.begin(0, arrays, [])
    assert member.word(0) == 0


async def test_who_only_gives_waits_for_nobody(hubs: Any, join: Any) -> None:
    group = join(hubs(SIZE))
    for seq, kind in enumerate((Kind.broadcast, Kind.gather, Kind.reduce)):
        case = Case(kind, [4] * SIZE, 0, seq, False)
        giver = group[0] if kind is Kind.broadcast else group[1]
        exchange, _, _ = case.begin(giver, "own")
        assert giver.step(exchange)
