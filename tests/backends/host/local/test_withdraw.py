"""Operations that fail on one rank, whose array is written again at once, while another still reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aiodist._engine.exchange import Exchange, before_reads
from aiodist.backends.base import Array
from aiodist.backends.host.local.board import OUT, SLOTS
from aiodist.backends.host.local.hub import ASLEEP_LOOP
from aiodist.backends.host.local.plan import Path
from aiodist.base.types import NO_ROOT, Kind, ReduceOp
from tests.backends.host.local.members import Member, call_of, run

COUNT = 9000
"""Elements of a part: several blocks of SMALL in the thread."""

PLACES = [("segment", "own"), ("odd", "own"), ("segment", "segment")]
"""Of rank 0's arrays, which are exposed, and of the others'."""
CASES = [
    *(Kind.broadcast, Kind.all_gather, Kind.gather, Kind.scatter, Kind.all_to_all, Kind.reduce_scatter),
    *(Kind.all_reduce, Kind.reduce),
]
ROOTED = (Kind.broadcast, Kind.scatter, Kind.gather, Kind.reduce)
WHOLE = (Kind.scatter, Kind.all_to_all, Kind.reduce_scatter)  # each member's source has a part for each


def values(rank: int, count: int) -> Array:
    """What nobody else has, and never -1."""
    return np.arange(count, dtype=np.int64) + 1_000_000 * (rank + 1)


class Case:
    """One collective of three members; rank 0, whose operation will fail, is the root of what has one."""

    def __init__(self, group: list[Member], kind: Kind, path: Path, places: tuple[str, str]) -> None:
        size = len(group)
        self.kind = kind
        self.root = (1 if kind in (Kind.gather, Kind.reduce) else 0) if kind in ROOTED else NO_ROOT
        whole = COUNT * size if kind in WHOLE else COUNT
        reduce = ReduceOp.SUM if kind in (Kind.all_reduce, Kind.reduce, Kind.reduce_scatter) else None
        self.arrays: list[Array | None] = []
        self.targets: list[Array | None] = []
        self.running: list[tuple[Member, Exchange]] = []
        for member in group:
            rank, place = member.rank, places[member.rank > 0]
            gives = kind not in (Kind.broadcast, Kind.scatter) or rank == self.root
            source = member.put(values(rank, whole), place) if gives else None
            if kind in (Kind.all_reduce, Kind.reduce):
                target = source if kind is Kind.all_reduce or rank == self.root else None
            elif kind is Kind.broadcast:
                target = None if gives else member.put(np.full(COUNT, -1), place)
            elif kind is Kind.gather and rank != self.root:
                target = None
            else:
                parts = size if kind in (Kind.gather, Kind.all_gather, Kind.all_to_all) else 1
                target = member.put(np.full(COUNT * parts, -1), place)
            shape = np.zeros(COUNT if kind is Kind.scatter else whole, np.int64)
            call = call_of(kind, shape, 0, reduce, self.root)
            self.running.append((member, member.begin(call, source, target, path)))
            self.arrays.append(source if source is not None else target)
            self.targets.append(target)

    def right(self, rank: int) -> bool:
        """Whether a rank that reports success has what it has to have."""
        target = self.targets[rank]
        if target is None:
            return True
        if self.kind is Kind.broadcast:
            return np.array_equal(target, values(0, COUNT))
        mine = slice(rank * COUNT, (rank + 1) * COUNT)
        if self.kind is Kind.scatter:
            return np.array_equal(target, values(0, COUNT * 3)[mine])
        every = [values(other, COUNT * (3 if self.kind in WHOLE else 1)) for other in range(3)]
        if self.kind in (Kind.gather, Kind.all_gather):
            return np.array_equal(target, np.concatenate(every))
        if self.kind is Kind.all_to_all:
            return np.array_equal(target, np.concatenate([row[mine] for row in every]))
        total = np.sum(every, 0)
        return np.array_equal(target, total[mine] if self.kind is Kind.reduce_scatter else total)

    def fail_first(self) -> None:
        """Rank 0's operation fails, and its user writes to the array at once."""
        member, exchange = self.running[0]
        member.withdraw(exchange)
        array = self.arrays[0]
        assert array is not None
        array[...] = -7


@pytest.fixture
def stop_readers() -> Iterator[Callable[[Callable[[], object] | None], None]]:
    """Called with what happens before each read of a peer's memory."""
    yield before_reads
    before_reads(None)


@pytest.mark.parametrize("places", PLACES, ids="-".join)
@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)
async def test_what_is_read_after_the_failure_is_no_result(
    hubs: Any, join: Any, stop_readers: Any, kind: Kind, path: Path, places: tuple[str, str]
) -> None:
    """A reader stops between its look at the words and its copy, at each of its reads in turn."""
    local = hubs(3)
    stop: list[Callable[[], None]] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        reads += 1
        if reads == number and stop:
            stop.pop()()

    stop_readers(read)
    number, ended = 0, 0
    while True:
        number, reads = number + 1, 0
        group = join(local)
        case = Case(group, kind, path, places)
        stop[:] = [case.fail_first]
        left = run(case.running, seed=number)
        for member, exchange in case.running:
            if not exchange.ended and (member, exchange) not in left:
                assert case.right(member.rank), (kind, number, member.rank)
                ended += 1
        for member in group:
            member.leave()
            member.close()
        if stop:  # it was over before so many reads
            stop.clear()
            break
        if not ended and number == 1:  # at the first read nobody can have been through
            assert len(left) == 3
    assert number > 1
    assert ended >= 2  # at the last, all


@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
async def test_nothing_derived_is_handed_on(hubs: Any, join: Any, stop_readers: Any, path: Path) -> None:
    """Rank 1 reduces its part from what rank 0 wrote too late: rank 2 is not told that it may have it."""
    group = join(hubs(3))
    case = Case(group, Kind.all_reduce, path, ("segment", "segment"))
    late: list[int] = []

    def read() -> None:
        if not late:
            late.append(1)
            case.fail_first()

    stop_readers(read)
    assert not case.running[1][0].step(case.running[1][1])
    assert late
    stop_readers(None)
    left = run(case.running)
    assert left == case.running
    assert group[1].word(0, OUT) == 0


async def test_slot_keeps_its_word_until_somebody_fails(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    case = Case(group, Kind.all_gather, Path.inline, ("segment", "segment"))
    member, exchange = case.running[0]
    assert member.word(0) == exchange.code
    for other in group[1:]:
        other.hub.words[ASLEEP_LOOP] = 7
    member.withdraw(exchange)
    assert [member.word(seq) for seq in range(SLOTS)] == [0] * SLOTS
    for other in group[1:]:
        assert other.hub.segment.hear() == (True, False)  # whoever sleeps is woken
        other.hub.words[ASLEEP_LOOP] = 0
