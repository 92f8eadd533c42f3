"""Which operation led to which, and shifts of the clocks by which no effect comes before its cause. Pure.

A send leads to the receive that took its message. The rank that comes last to a collective of which nobody
can end before all have come leads to its ends on the others; of a broadcast or scatter the root does.

Where a clock's error makes a message run backwards, the clocks are moved, by the least part of a correction
that satisfies all messages and stays within every clock's bound of error. What cannot be satisfied so is no
arrow: such a pair was not matched rightly, or the bound does not hold. Collectives move no clock: on the
fast path a rank writes down that it has begun one after its peers can see that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiodist.base.operations import ROLES
from aiodist.observe.recorder.reading import Group, Record
from aiodist.observe.spans import Span
from aiodist.observe.view import RankView

LEAST = 1e-6
"""Seconds from the tail of an arrow to its head, at least."""

FAR = 1.0
"""Seconds by which a receive that ended before its loop slept is drawn longer, at most."""


@dataclass(slots=True)
class Arrow:
    """From the begin of one operation to the end of another."""

    tail: Span
    head: Span
    name: str

    @property
    def room(self) -> float:
        """Seconds by which it is longer than it has to be; below 0.0: it runs backwards."""
        return self.head.end - self.tail.start - LEAST

    @property
    def backwards(self) -> bool:
        """Whether it runs backwards, by more than what sums of floating-point numbers lose."""
        return self.room < -LEAST / 4


def messages(ranks: Sequence[RankView], spans: Iterable[Span]) -> list[Arrow]:
    """The arrows from sends to receives: message k with a tag is the k-th send there and k-th receive here.

    Receives that were taken back took no message, so those after them have one of a lower number. Where a
    rank receives from anybody, nobody wrote down from whom: there are no arrows to it with such a tag.
    """
    taken_back, anybody = _taken_back(ranks)
    sends: dict[Hashable, Span] = {}
    receives: list[tuple[int, tuple[Hashable, ...], Span]] = []
    for span in spans:
        record = span.record
        peer = _peer(record)
        if peer is None:
            continue
        stream: tuple[Hashable, ...] = (record.group, record.tag)
        if record.op == "send":
            sends[(*stream, span.rank, peer, record.number)] = span
        elif record.op == "recv" and (span.rank, *stream) not in anybody:
            receives.append((peer, stream, span))
    arrows = []
    for peer, stream, span in reversed(receives):  # the last first: how many were taken back before it?
        source = (span.rank, *stream, peer)
        if span.state == "failed":
            taken_back[source] -= 1
            continue
        number = span.record.number - taken_back[source]
        tail = sends.get((*stream, peer, span.rank, number))
        if tail is not None and span.state != "pending":
            arrows.append(Arrow(tail, span, "message"))
    return arrows[::-1]


def collectives(spans: Iterable[Span]) -> list[Arrow]:
    """The arrows of collectives of which all ranks are known."""
    found: dict[Hashable, list[Span]] = defaultdict(list)
    for span in spans:
        if span.record.op not in ("send", "recv") and span.record.group is not None:
            found[span.record.group, span.record.number, span.record.op].append(span)
    arrows = []
    for those in found.values():
        group = those[0].record.group
        if group is not None and len(those) == len(group.ranks):
            cause = _cause(those, group)
            if cause is not None:
                heads = (span for span in those if span is not cause[0] and span.state == "ended")
                arrows += [Arrow(cause[0], span, cause[1]) for span in heads]
    return arrows


_COLLECTIVES = [(kind.name, roles) for kind, roles in ROLES.items() if not roles.message]
_ALL = {name for name, roles in _COLLECTIVES if not roles.rooted}  # each waits for all
_FROM_ROOT = {name for name, roles in _COLLECTIVES if roles.root_gives}


def _cause(those: Sequence[Span], group: Group) -> tuple[Span, str] | None:
    """Which span of a collective let the others end, and why."""
    record = those[0].record
    if record.op in _ALL:
        return max(those, key=lambda span: span.start), "last to come"
    if record.op in _FROM_ROOT and 0 <= record.root < len(group.ranks):
        return next((span for span in those if span.rank == group.ranks[record.root]), those[0]), "root"
    return None


def drawn_out(arrows: Iterable[Arrow]) -> None:
    """Lengthen receives that ended before their loop slept: they cannot have ended before the send began."""
    for arrow in arrows:
        if arrow.head.state == "brief" and -FAR < arrow.room < 0:
            arrow.head.end = arrow.tail.start + LEAST


def corrections(
    arrows: Iterable[Arrow], clock_of: Callable[[int], Hashable], errors: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """Seconds to add to the times of each clock.

    Args:
        arrows: that are to run forwards; those whose ends nobody knows say nothing.
        clock_of: the clock of a rank.
        errors: the bound of each clock's error, which its correction does not exceed.
    """
    tightest: dict[tuple[Hashable, Hashable], float] = {}
    for arrow in arrows:
        pair = clock_of(arrow.tail.rank), clock_of(arrow.head.rank)
        if pair[0] != pair[1] and arrow.head.state != "brief":
            if arrow.room < -(errors[pair[0]] + errors[pair[1]]):
                continue  # beyond all that the bounds allow
            tightest[pair] = min(arrow.room, tightest.get(pair, arrow.room))
    pairs = sorted(tightest, key=tightest.__getitem__)
    left_out = bisect_left(  # some contradict each other: those that run backwards the most go, until none do
        range(sum(room < 0 for room in tightest.values())),
        True,
        key=lambda count: _middle({pair: tightest[pair] for pair in pairs[count:]}, errors) is not None,
    )
    rooms = {pair: tightest[pair] for pair in pairs[left_out:]}
    needed = [pair for pair in rooms if rooms[pair] < 0]
    middle = _middle(rooms, errors) if needed else None
    if middle is None:
        return dict.fromkeys(errors, 0.0)
    part = max(rooms[one, other] / (middle[one] - middle[other]) for one, other in needed)
    return {clock: seconds * part for clock, seconds in middle.items()}


_HERE = ("the reference",)


def _middle(
    rooms: Mapping[tuple[Hashable, Hashable], float], errors: Mapping[Hashable, float]
) -> dict[Hashable, float] | None:
    """Of all corrections that satisfy the arrows, the middle between the greatest and the least."""
    ways = [(other, one, room) for (one, other), room in rooms.items()]  # c[one] <= c[other] + room
    for clock, error in errors.items():
        ways += [(_HERE, clock, error), (clock, _HERE, error)]
    most = _shortest(ways, len(errors) + 1)
    least = _shortest([(end, start, length) for start, end, length in ways], len(errors) + 1)
    if most is None or least is None:
        return None
    return {clock: (most[clock] - least[clock]) / 2 for clock in errors}


def _shortest(ways: Sequence[tuple[Hashable, Hashable, float]], places: int) -> dict[Hashable, float] | None:
    """The shortest distances from the reference (Bellman and Ford); None: they have no end in a circle."""
    found: dict[Hashable, float] = {_HERE: 0.0}
    for _ in range(places):
        changed = False
        for start, end, length in ways:
            if start in found and found[start] + length < found.get(end, float("inf")) - _NOISE:
                found[end] = found[start] + length
                changed = True
        if not changed:
            return found
    return None


_NOISE = 1e-12  # seconds, of floating-point sums


def _peer(record: Record) -> int | None:
    """The global rank of a message's peer; None: it is no message, or from anybody."""
    if record.group is None or not 0 <= record.root < len(record.group.ranks):
        return None
    return record.group.ranks[record.root]


def _taken_back(ranks: Sequence[RankView]) -> tuple[Counter[Hashable], set[Hashable]]:
    """How many receives were taken back, by rank, group, tag and source; and who receives from anybody."""
    counts: Counter[Hashable] = Counter()
    anybody: set[Hashable] = set()
    for rank in ranks:
        for one in rank.recording.sums:
            if one.op == "recv" and one.group is not None:
                if 0 <= one.root < len(one.group.ranks):
                    counts[rank.rank, one.group, one.tag, one.group.ranks[one.root]] += one.failed
                else:
                    anybody.add((rank.rank, one.group, one.tag))
    return counts, anybody
