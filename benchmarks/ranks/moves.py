"""The copies and sums that ranks of one host cannot do without in an operation, as a list. Pure.

They are those of aiodist's engine, in blocks of its sizes: a rank copies what others read into memory that
they map (staging), and takes or combines from there what it gets. Arrays of `pg.empty` are read where they
lie, so nothing is staged. Nobody waits for anybody: no operation that goes the same way takes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from aiodist.backends.host.local.board import PAYLOAD
from aiodist.backends.host.local.plan import INLINE_BLOCK, blocks
from aiodist.base.environment.thresholds import DEFAULTS
from benchmarks.harness.cases import COLLECTIVES, Case, five

_CUT = ("reduce_scatter", "all_to_all", "scatter")  # part r of the input goes to rank r
_SORTED = ("all_gather", "all_to_all", "gather")  # the output has a place for each rank
_SUMMED = ("all_reduce", "reduce", "reduce_scatter")
_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather")
KNOWN = (*COLLECTIVES, "p2p", "five")
"""The operations that have a floor. A barrier moves nothing."""


class Place(NamedTuple):
    """Some elements of an array of a rank: of its 'tensor', its 'out', or its 'staging'."""

    array: str
    rank: int
    begin: int
    end: int


class Move(NamedTuple):
    """A copy of `one` to `into`, or the sum of `one` and `other` there."""

    into: Place
    one: Place
    other: Place | None = None


Phase = list[Move]
"""What a rank does until it would have to wait for others."""


def phases(case: Case, size: int, rank: int) -> Iterator[Phase]:
    """The moves of a rank, in order; as many phases on every rank."""
    for floor in _floors(case, size, rank):
        yield from floor.phases()


def staging(case: Case, size: int) -> int:
    """Elements of staging that each rank needs."""
    return max(floor.staging() for floor in _floors(case, size, 0))


def _floors(case: Case, size: int, rank: int) -> Iterator[_Floor]:
    if case.what != "five":
        yield _Floor(case, size, rank)
        return
    for what, (given, got) in five(case, size).items():
        if what in KNOWN:
            yield _Floor(replace(case, what=what), size, rank, given.start, got.start)


@dataclass(frozen=True)
class _Floor:
    """One operation on one rank.

    Args:
        case: its `shared` says that the arrays lie in memory that all map.
        first: where the input begins in the tensor.
        first_out: where the output begins in `out`.
    """

    case: Case
    size: int
    rank: int
    first: int = 0
    first_out: int = 0

    def phases(self) -> Iterator[Phase]:
        if self.case.what == "p2p":
            return self._message()
        if self._in_two():
            return self._two_phases()
        return self._one_phase()

    def staging(self) -> int:
        if self.case.what == "p2p":
            return self._block_of_one()[0]
        if self._in_two():
            block, depth = self._block_of_two()
            return depth * self.size * block
        if self._small():
            return self.case.lengths(self.size)[0]
        block, depth = self._block_of_one()
        return depth * self._lanes() * block

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _part(self) -> int:
        """Elements that one rank gives another."""
        length, out = self.case.lengths(self.size)
        return min(length, out) or length if self.case.what not in _CUT else length // self.size

    def _bytes(self, count: int) -> int:
        return count * self.case.numpy_dtype.itemsize

    def _small(self) -> bool:
        """Whether everything goes in one go, and every rank takes or sums all that it gets."""
        if self.case.what == "all_reduce":
            return self.case.nbytes <= DEFAULTS.direct
        return self._bytes(self.case.lengths(self.size)[0]) <= PAYLOAD

    def _in_two(self) -> bool:
        """Whether every rank sums its part, which is then collected."""
        if self.case.what == "all_reduce":
            return self.case.shared or not self._small()
        return self.case.what == "reduce" and not self._small()

    def _lanes(self) -> int:
        return self.size - 1 if self.case.what in _CUT else 1

    def _block_of_one(self) -> tuple[int, int]:
        """Elements of a block, and how many blocks lie in staging, where there is one phase."""
        part, itemsize = max(1, self._part), self.case.numpy_dtype.itemsize
        if self.case.nbytes <= DEFAULTS.inline:
            block = min(part, INLINE_BLOCK // itemsize)
            return block, -(-part // block)
        nbytes, depth = blocks(self.size, self._lanes(), DEFAULTS, phases=1)
        return min(part, nbytes // itemsize), depth

    def _block_of_two(self) -> tuple[int, int]:
        """The same where there are two."""
        itemsize = self.case.numpy_dtype.itemsize
        longest = max(1, self._spans()[0][1])
        if self.case.nbytes <= DEFAULTS.inline:
            return longest, 1
        lanes = 0 if self.case.shared and self.case.what == "all_reduce" else self.size - 1
        nbytes, depth = blocks(self.size, lanes, DEFAULTS)
        return min(longest, nbytes // itemsize), depth

    def _spans(self) -> list[tuple[int, int]]:
        """Where the part of each rank begins and ends: equal parts of whole cache lines."""
        length, _ = self.case.lengths(self.size)
        line = max(1, 64 // self.case.numpy_dtype.itemsize)
        part = -(-length // (self.size * line)) * line
        return list(pairwise(min(rank * part, length) for rank in range(self.size + 1)))

    def _gives(self, rank: int) -> bool:
        """Whether others read anything of this rank."""
        return (
            rank == 0 if self.case.what in _FROM_ROOT else rank != 0 if self.case.what in _TO_ROOT else True
        )

    def _gets(self) -> bool:
        return self.rank == 0 if self.case.what in _TO_ROOT else True

    # ── where things are ─────────────────────────────────────────────────────────────────────────────

    def _tensor(self, rank: int, begin: int, end: int) -> Place:
        return Place("tensor", rank, self.first + begin, self.first + end)

    def _out(self, begin: int, end: int) -> Place:
        if self.case.what in ("broadcast", "reduce", "all_reduce"):
            return self._tensor(self.rank, begin, end)
        return Place("out", self.rank, self.first_out + begin, self.first_out + end)

    # ── one phase ────────────────────────────────────────────────────────────────────────────────────

    def _one_phase(self) -> Iterator[Phase]:
        part, small, shared = self._part, self._small(), self.case.shared
        block, depth = (part, 1) if small else self._block_of_one()
        for number in range(-(-part // block)):
            begin, end = number * block, min(number * block + block, part)
            place = number % depth
            if not shared:
                fills = self._gives(self.rank)
                yield (self._fill_all() if small else self._fill(begin, end, place, block)) if fills else []
            yield self._take(begin, end, place, block) if self._gets() else []

    def _fill_all(self) -> Phase:
        length, _ = self.case.lengths(self.size, self.rank)
        return [Move(Place("staging", self.rank, 0, length), self._tensor(self.rank, 0, length))]

    def _fill(self, begin: int, end: int, place: int, block: int) -> Phase:
        if self.case.what not in _CUT:
            into = self._lane(self.rank, 0, place, block, end - begin)
            return [Move(into, self._tensor(self.rank, begin, end))]
        part = self._part
        return [
            Move(
                self._lane(self.rank, to - (to > self.rank), place, block, end - begin),
                self._tensor(self.rank, to * part + begin, to * part + end),
            )
            for to in range(self.size)
            if to != self.rank
        ]

    def _take(self, begin: int, end: int, place: int, block: int) -> Phase:
        part, what = self._part, self.case.what
        first = self.rank * part if what in _CUT else 0
        mine = self._tensor(self.rank, first + begin, first + end)
        moves: Phase = []
        total, rank_0 = mine, self.rank == 0
        for source in range(self.size):
            into = self._out(source * part + begin, source * part + end)
            if what not in _SORTED:
                into = self._out(begin, end)
            if source == self.rank:
                has = rank_0 or what not in _FROM_ROOT
                if has and what not in _SUMMED and into != mine:
                    moves.append(Move(into, mine))
            elif self._gives(source):
                theirs = self._theirs(source, begin, end, place, block)
                moves.append(Move(into, total, theirs) if what in _SUMMED else Move(into, theirs))
                total = into
        return moves

    def _theirs(self, source: int, begin: int, end: int, place: int, block: int) -> Place:
        """A block of what another rank gives this one."""
        cut = self.case.what in _CUT
        first = self.rank * self._part if cut else 0
        if self.case.shared:
            return self._tensor(source, first + begin, first + end)
        if self._small():
            return Place("staging", source, first + begin, first + end)
        lane = self.rank - (self.rank > source) if cut else 0
        return self._lane(source, lane, place, block, end - begin)

    def _lane(self, rank: int, lane: int, place: int, block: int, count: int) -> Place:
        begin = (place * self._lanes() + lane) * block
        return Place("staging", rank, begin, begin + count)

    # ── two phases ───────────────────────────────────────────────────────────────────────────────────

    def _two_phases(self) -> Iterator[Phase]:
        block, depth = self._block_of_two()
        rank, shared = self.rank, self.case.shared
        others = [member for member in range(self.size) if member != rank]
        longest = max(high - low for low, high in self._spans())
        for number in range(-(-longest // block)):
            place = number % depth
            spans = [
                (min(low + number * block, high), min(low + (number + 1) * block, high))
                for low, high in self._spans()
            ]
            lanes = [high - low for low, high in spans]
            if not shared:
                yield [
                    Move(self._given(rank, to, place, block, lanes[to]), self._tensor(rank, *spans[to]))
                    for to in others
                    if lanes[to]
                ]
            yield self._sum(spans[rank], place, block) if lanes[rank] else []
            yield [
                Move(
                    self._tensor(rank, *spans[source]),
                    self._tensor(source, *spans[source])
                    if self._shows(source)
                    else self._result(source, place, block, lanes[source]),
                )
                for source in others
                if lanes[source] and self._gets()
            ]

    def _sum(self, span: tuple[int, int], place: int, block: int) -> Phase:
        count = span[1] - span[0]
        mine = total = self._tensor(self.rank, *span)
        into = mine if self._shows(self.rank) else self._result(self.rank, place, block, count)
        moves: Phase = []
        for source in range(self.size):
            if source != self.rank:
                theirs = self._given(source, self.rank, place, block, count)
                moves.append(Move(into, total, self._tensor(source, *span) if self.case.shared else theirs))
                total = into
        if into != mine and self._gets():
            moves.append(Move(mine, into))
        return moves

    def _shows(self, rank: int) -> bool:
        """Whether others read this rank's sums in its tensor."""
        return self.case.shared and (self.case.what == "all_reduce" or rank == 0)

    def _given(self, source: int, to: int, place: int, block: int, count: int) -> Place:
        begin = (place * self.size + to - (to > source)) * block
        return Place("staging", source, begin, begin + count)

    def _result(self, source: int, place: int, block: int, count: int) -> Place:
        begin = (place * self.size + self.size - 1) * block
        return Place("staging", source, begin, begin + count)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def _message(self) -> Iterator[Phase]:
        """There and back: each rank copies one message in, block by block, and one out."""
        length, _ = self.case.lengths(self.size)
        block, _ = self._block_of_one()
        for number in range(-(-length // block)):
            begin, end = number * block, min(number * block + block, length)
            yield [Move(Place("staging", self.rank, 0, end - begin), self._tensor(self.rank, begin, end))]
            yield [Move(self._out(begin, end), Place("staging", 1 - self.rank, 0, end - begin))]
