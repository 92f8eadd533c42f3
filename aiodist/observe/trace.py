"""A job as a trace that Perfetto and Chrome open: all ranks on one clock, with arrows between them. Pure.

Each rank is a process of the trace. Its operations lie in lanes, so that those of one lane never overlap; in
each of them are the time for which it waited and the time for which data moved. Times are whole eighths of a
microsecond: these are exact as binary numbers and as nanoseconds, so what nests here nests for every reader.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from aiodist.observe.arrows import Arrow, collectives, corrections, drawn_out, messages
from aiodist.observe.clocks import UNKNOWN, clock_of
from aiodist.observe.spans import Span, present, spans
from aiodist.observe.view import Doing, JobView, RankView
from aiodist.observe.words import message, nth, peer, place, reported

_TICKS = 8  # in a microsecond
_EVENTS = 0  # the lane of what happened
_HALF = 4  # ticks before the end of a slice, in which an arrow ends: in it, for every reader

Json = dict[str, Any]


def trace(job: JobView, seconds: float = math.inf) -> Json:
    """The trace.

    Args:
        job: its ranks, placed on one clock (`clocks.place`).
        seconds: for which the past is shown, counted from the last moment that is known.
    """
    ranks = job.ranks
    clocks: dict[int, Hashable] = {rank.rank: clock_of(rank) for rank in ranks}
    errors = {clocks[rank.rank]: rank.error for rank in ranks}
    shown = [span for rank in ranks for span in spans(rank)]
    arrows = messages(ranks, shown)
    moved = corrections(arrows, clocks.__getitem__, errors)
    for span in shown:
        span.move(moved[clocks[span.rank]])
    drawn_out(arrows)
    arrows += collectives(shown)
    end = max((rank.time(present(rank)) for rank in ranks), default=0.0)
    shown = [span for span in shown if span.end >= end - seconds]
    base = min((span.start for span in shown), default=end)
    lanes = _lanes(shown, base)
    flows = list(_flows(arrows, lanes, base))
    highest = dict.fromkeys((rank.rank for rank in ranks), 0)
    for span in shown:
        highest[span.rank] = max(highest[span.rank], lanes[id(span)])
    events: list[Json] = []
    for rank in ranks:
        events += _names(rank, 1 + highest[rank.rank])
        events += _happened(rank, base, moved[clocks[rank.rank]], end - seconds)
    for span in shown:
        events += _slices(span, lanes[id(span)], base)
    known = [rank.error for rank in ranks if rank.error < UNKNOWN]
    return {
        "traceEvents": [*events, *flows],
        "displayTimeUnit": "ns",
        "distributedInfo": _distributed(job),
        "baseTimeNanoseconds": _wall(ranks, base),
        "otherData": {
            "job": reported(job.key),
            "clock error in seconds, at most": None if len(known) < len(ranks) else max(known, default=0.0),
            "clocks": [_clock(rank, moved[clocks[rank.rank]]) for rank in ranks],
            "arrows": len(flows) // 2,
            "arrows left out, since they ran backwards": sum(arrow.backwards for arrow in arrows),
        },
    }


def _ticks(seconds: float, base: float, up: bool = False) -> int:
    exact = (seconds - base) * 1e6 * _TICKS
    return math.ceil(exact) if up else math.floor(exact)


def _ends(span: Span, base: float) -> tuple[int, int]:
    """The first and last tick of a span: its slice is a microsecond long, at least."""
    start = _ticks(span.start, base)
    return start, max(_ticks(span.end, base, up=True), start + _TICKS)


def _lanes(shown: Iterable[Span], base: float) -> dict[int, int]:
    """The lane of each span, by its id: the lowest that is free."""
    taken: dict[int, list[tuple[int, int]]] = {}  # by rank: until when, and which lane; a heap
    free: dict[int, list[int]] = {}  # by rank, a heap
    found = {}
    for span in sorted(shown, key=lambda span: span.start):
        start, end = _ends(span, base)
        ends, lanes = taken.setdefault(span.rank, []), free.setdefault(span.rank, [])
        while ends and ends[0][0] <= start:
            heappush(lanes, heappop(ends)[1])
        lane = heappop(lanes) if lanes else 1 + len(ends)
        heappush(ends, (end, lane))
        found[id(span)] = lane
    return found


def _event(ph: str, name: str, rank: int, tid: int, ticks: int = 0, **more: Any) -> Json:
    return {"ph": ph, "name": name, "pid": rank, "tid": tid, "ts": ticks / _TICKS, **more}


def _names(rank: RankView, lanes: int) -> Iterator[Json]:
    name = f"rank {rank.rank} {reported(rank.host)}:{rank.recording.pid}"
    yield _event("M", "process_name", rank.rank, 0, args={"name": name})
    yield _event("M", "process_sort_index", rank.rank, 0, args={"sort_index": rank.rank})
    for lane in range(lanes):
        what = "events" if lane == _EVENTS else "operations" if lane == 1 else f"operations {lane}"
        yield _event("M", "thread_name", rank.rank, lane, args={"name": what})
        yield _event("M", "thread_sort_index", rank.rank, lane, args={"sort_index": lane})


def _slices(span: Span, lane: int, base: float) -> Iterator[Json]:
    start, end = _ends(span, base)
    record = span.record
    is_message = record.op in ("send", "recv")
    name, (op, tag) = reported(record.called or record.op), message(record)
    if is_message:
        there = "anybody" if record.root < 0 else f"rank {peer(record)}"
        name = f"{op} {'to' if record.op == 'send' else 'from'} {there}"
    args: Json = {
        "group": reported(record.group.name) if record.group is not None else None,
        "epoch": record.group.epoch if record.group is not None else None,
        "number": nth(record),
        "bytes": record.nbytes,
        "dtype": reported(record.dtype),
        "shape": list(record.shape),
        "line": place(record.line),
        "state": _STATES[span.state],
    }
    args |= {"reduce": reported(record.reduce)} if record.reduce else {}
    args |= {"tag": tag} if is_message else {"root": record.root} if record.root >= 0 else {}
    length = (end - start) / _TICKS
    yield _event(
        "X",
        name,
        span.rank,
        lane,
        start,
        dur=length,
        cat="message" if is_message else "collective",
        args=args,
    )
    turn = min(end, max(start, _ticks(span.waited, base))) if span.waited else start
    if span.state == "pending" and not span.waited:
        turn = end
    for phase, first, last in (("waiting", start, turn), ("moving", turn, end)):
        if last > first and turn > start:
            yield _event("X", phase, span.rank, lane, first, dur=(last - first) / _TICKS, cat="phase")


_STATES = {
    "ended": "ended",
    "failed": "failed",
    "pending": "still pending; cut here",
    "brief": "ended before the loop slept; its end is not known",
}


def _flows(arrows: Sequence[Arrow], lanes: dict[int, int], base: float) -> Iterator[Json]:
    """Pairs of events: an arrow leaves where a slice begins, and ends shortly before the end of another."""
    for number, arrow in enumerate(arrows, 1):
        tail, head = arrow.tail, arrow.head
        if id(tail) in lanes and id(head) in lanes and not arrow.backwards:
            more: Json = {"id": number, "cat": "arrow"}
            leaves, ends = _ends(tail, base)[0], _ends(head, base)[1] - _HALF
            yield _event("s", arrow.name, tail.rank, lanes[id(tail)], leaves, **more)
            yield _event("f", arrow.name, head.rank, lanes[id(head)], ends, bp="e", **more)


def _happened(rank: RankView, base: float, moved: float, since: float) -> Iterator[Json]:
    """What a rank told, and what it is seen to do that is no operation, as instants."""
    vitals = rank.recording.vitals
    moments = [(event.at, reported(event.text)) for event in rank.recording.events]
    if rank.doing is Doing.dead:
        moments.append((present(rank), "last sign: its process has ended without leaving"))
    elif rank.doing in (Doing.blocked, Doing.stopped) and vitals.turned:
        moments.append((vitals.turned, f"last seen running: {rank.doing.value}"))
    elif rank.doing is Doing.held:
        moments.append((vitals.flushed, f"last sign: {rank.doing.value}"))
    for at, text in moments:
        at = rank.time(at) + moved
        if at >= since:
            yield _event("i", text, rank.rank, _EVENTS, max(0, _ticks(at, base)), s="p", cat="event")


def _clock(rank: RankView, moved: float) -> Json:
    error = rank.error if rank.error < UNKNOWN else None
    return {
        "rank": rank.rank,
        "shift": rank.shift + moved,
        "error": error,
        "drift": rank.drift,
        "moved": moved,
    }


def _distributed(job: JobView) -> Json:
    """What torch's profiler says of a job: tools that read its traces look for it."""
    about = job.ranks[0].recording.about if job.ranks else {}
    groups = list(dict.fromkeys(group for rank in job.ranks for group in rank.recording.groups))
    config = [{"pg_name": reported(group.name), "pg_size": len(group.ranks)} for group in groups]
    return {
        "backend": reported(about.get("backend", "aiodist")),
        "rank": job.ranks[0].rank if job.ranks else 0,
        "world_size": job.size if job.ranks else 0,
        "pg_count": len(groups),
        "pg_config": config,
    }


def _wall(ranks: Sequence[RankView], base: float) -> int:
    """The time of day of the trace's begin, in nanoseconds since 1970."""
    return round((base - ranks[0].shift + ranks[0].recording.offset) * 1e9) if ranks else 0
