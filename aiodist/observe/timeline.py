"""The last seconds of some ranks, for a page: what each waited for and moved, on one clock. Pure.

Operations that are shorter than can be drawn are drawn together, so that the size of the answer depends on
the width of the picture and not on how many operations there were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from aiodist.observe import rates
from aiodist.observe.page import text
from aiodist.observe.spans import Span, present, spans
from aiodist.observe.view import JobView, RankView

MOST = 512
"""Operations of a rank that are looked at, the last ones."""

FINEST = 600
"""Parts of the picture's width below which operations are drawn together."""

LANES = 3  # operations of a rank that are drawn one below the other


def timeline(job: JobView, ranks: Iterable[int], seconds: float, most: int = MOST) -> dict[str, Any]:
    """The last seconds of a job.

    Args:
        job: placed on one clock (`clocks.place`).
        ranks: that are wanted; those that were not seen are left out.
        seconds: how many.
        most: operations of a rank that are looked at.

    Returns:
        'seconds'; 'error', by which times of different ranks may be wrong; 'lines', texts; 'ranks', for each
        its 'rank', 'known' (from when on all is known) and 'spans': [start, end, waited, state, what, line,
        count, lane]. Times are seconds before the present, at most 0. `what` and `line` are places in
        'lines'. Until `waited` the operation has waited for peers; None: nobody knows. `count` operations are
        drawn together where it is above 1.
    """
    wanted = set(ranks)
    views = [view for view in job.ranks if view.rank in wanted]
    end = max((view.time(present(view)) for view in job.ranks), default=0.0)
    texts: dict[str, int] = {}
    shown = [_lane(view, end, seconds, most, texts) for view in views]
    error = max((view.error for view in views), default=0.0)
    return {"seconds": seconds, "error": error, "lines": list(texts), "ranks": shown}


def _lane(view: RankView, end: float, seconds: float, most: int, texts: dict[str, int]) -> dict[str, Any]:
    last = view.recording.last
    start = end - seconds
    begin = bisect_left(last, start - 1.0, key=lambda record: view.time(record.issued))
    begin = max(begin, len(last) - most)
    kept = last[begin:] if begin else last
    found = [span for span in spans(_only(view, kept)) if span.end >= start]
    older = bool(begin) or view.recording.vitals.issued > len(last)  # than what is here
    known = view.time(kept[0].issued) if kept and older else start
    rows = [_row(group, end, lane, texts) for group, lane in _laid(_together(found, seconds / FINEST))]
    return {"rank": view.rank, "known": _ago(max(start, known), end), "spans": rows}


def _only(view: RankView, last: Sequence[Any]) -> RankView:
    return replace(view, recording=replace(view.recording, last=tuple(last)))


def _together(found: Sequence[Span], finest: float) -> list[list[Span]]:
    """Neighbours that are too short to be drawn alone, together."""
    groups: list[list[Span]] = []
    for span in found:
        short = span.end - span.start < finest and span.state in ("brief", "ended")
        last = groups[-1] if groups else []
        fits = (
            last and short and last[0].state in ("brief", "ended") and span.end - last[0].start < 2 * finest
        )
        if fits and all(one.end - one.start < finest for one in last[-1:]):
            last.append(span)
        else:
            groups.append([span])
    return groups


def _laid(groups: Iterable[list[Span]]) -> Iterable[tuple[list[Span], int]]:
    """Each with the lane in which it does not lie upon another, as far as there are lanes."""
    ends = [float("-inf")] * LANES
    for group in groups:
        lane = next((lane for lane in range(LANES) if ends[lane] <= group[0].start), LANES - 1)
        ends[lane] = max(ends[lane], group[-1].end)
        yield group, lane


def _row(group: list[Span], end: float, lane: int, texts: dict[str, int]) -> list[Any]:
    first, count = group[0], len(group)
    stop = max(span.end for span in group)
    if count == 1:
        waited = first.waited or None
        if waited is None and first.state == "pending":
            waited = first.end
    else:
        sums = [span.waited - span.start for span in group if span.waited]
        waited = first.start + sum(sums) if sums else None
    return [
        *(_ago(first.start, end), _ago(stop, end), None if waited is None else _ago(waited, end)),
        *("many" if count > 1 else first.state, _place(rates.named(first.record), texts)),
        *(_place(rates.placed(first.record.line), texts), count, lane),
    ]


def _ago(time: float, end: float) -> float:
    return round(min(0.0, time - end), 6)


def _place(name: str, texts: dict[str, int]) -> int:
    return texts.setdefault(text(name), len(texts))
