"""Calls between ranks, as these tell of them (`services.overview`), and which wait in a circle. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from aiodist.base.sanitize import one_line
from aiodist.observe.recorder.reading import sound, sound_number
from aiodist.observe.view import RankView


@dataclass(frozen=True, slots=True)
class PendingCall:
    """Calls of one rank that have no answer.

    Args:
        rank: that was called; -1: no member.
        name: of the handler.
        since: time at which the oldest was first seen, in seconds of the host's monotonic clock.
        count: how many there are.
        by: the handler that has asked them, of the rank that waits; '': none has.
        full: their handler runs as often as it may, so that some wait for a place.
    """

    rank: int
    name: str
    since: float
    count: int
    by: str = ""
    full: bool = False


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls that one rank tells of.

    Args:
        asked: calls of its own without an answer; served: those of others that it has not answered.
        to: its calls, by rank and handler.
        room: by rank, calls that wait until earlier ones are answered; without names.
        full: by handler, calls that wait here since it runs as often as it may; the rank is its own.
        within: those of `to` that handlers have asked which run here.
    """

    asked: int = 0
    served: int = 0
    to: tuple[PendingCall, ...] = ()
    room: tuple[PendingCall, ...] = ()
    full: tuple[PendingCall, ...] = ()
    within: tuple[PendingCall, ...] = ()


def calls_of(view: RankView) -> RankCalls:
    """The calls that a rank tells of; none where it tells nothing, or nothing that can be read."""
    found = view.recording.about.get("calls")
    try:
        if not isinstance(found, dict):
            return RankCalls()
        return RankCalls(
            _count(found["asked"]),
            _count(found["served"]),
            tuple(_pending(*one) for one in found["to"]),
            tuple(_pending(rank, "", *rest) for rank, *rest in found["room"]),
            tuple(_pending(view.rank, *one) for one in found["full"]),
            tuple(replace(_pending(*one), by=one_line(str(by))) for by, *one in found["within"]),
        )
    except (KeyError, TypeError, ValueError):
        return RankCalls()


def circles(ranks: dict[int, RankView], after: float) -> list[list[PendingCall]]:
    """Calls that wait for each other: each asks a handler that has itself asked the next one.

    At least one of them waits for a place, since its handler runs as often as it may. So no answer comes
    before one of the calls that run there ends, and those wait themselves for what does not come. Without
    such a handler calls that go around are a recursion, which may end. Calls that no handler has asked hold
    up nobody.

    Args:
        ranks: by number.
        after: seconds for which a call has to wait before it counts.

    Returns:
        circles without a handler in common; of each the calls, of the lowest rank's handler first.
    """
    waits: dict[_Handler, list[PendingCall]] = {}
    for rank, call in _late(ranks, after, within=True):
        waits.setdefault((rank, call.by), []).append(call)
    full = {(call.rank, call.name) for calls in waits.values() for call in calls if call.full}
    found: list[list[PendingCall]] = []
    seen: set[_Handler] = set()
    for start in sorted(full & waits.keys()):
        path = _path(start, waits, seen)
        seen |= {(call.rank, call.name) for call in path}
        if path:
            found.append(path)
    return found


def crowds(ranks: dict[int, RankView], after: float) -> dict[tuple[int, str], list[tuple[int, PendingCall]]]:
    """By rank and handler which runs as often as it may there, who has waited for that long, and in what."""
    found: dict[tuple[int, str], list[tuple[int, PendingCall]]] = {}
    for rank, call in _late(ranks, after, within=False):
        if call.full:
            found.setdefault((call.rank, call.name), []).append((rank, call))
    return found


_Handler = tuple[int, str]
"""A rank, and the name of a handler there."""


def _late(ranks: dict[int, RankView], after: float, *, within: bool) -> Iterator[tuple[int, PendingCall]]:
    """The calls that have waited for that long, with the rank that waits: all, or those that handlers have
    asked."""
    by_rank = {rank: calls_of(view) for rank, view in ranks.items()}
    for rank, calls in by_rank.items():
        for call in calls.within if within else calls.to:
            full = by_rank[call.rank].full if call.rank in by_rank else ()
            if ranks[rank].now - call.since >= after:
                yield rank, replace(call, full=any(one.name == call.name for one in full))


def _path(
    start: _Handler, waits: dict[_Handler, list[PendingCall]], without: set[_Handler]
) -> list[PendingCall]:
    """The shortest way from a handler back to it; [] where there is none."""
    ways: list[list[PendingCall]] = [[call] for call in waits[start] if start not in without]
    reached = {start} | without
    for way in ways:
        last = way[-1].rank, way[-1].name
        if last == start:
            return way
        if last not in reached:
            reached.add(last)
            ways += [[*way, call] for call in waits.get(last, ())]
    return []


def _pending(rank: Any, name: Any, since: Any, count: Any) -> PendingCall:
    if type(rank) is not int or type(since) is not float or not sound(since):
        raise ValueError("no call")
    return PendingCall(rank, one_line(str(name)), since, _count(count))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0 or not sound_number(value):
        raise ValueError("no count")
    return value
