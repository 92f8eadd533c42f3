"""A rank's operations as spans of time, on one clock for all ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.observe.recorder.reading import Record
from aiodist.observe.view import RankView

BRIEF = 1e-6
"""Seconds for which an operation is drawn that ended before the loop slept: nobody wrote down when."""


@dataclass(slots=True)
class Span:
    """An operation of a rank, in seconds of the clock that all ranks are placed on.

    Args:
        rank: whose it is.
        record: the operation.
        start, end: when it was issued, and ended; `end` is when the rank was seen, or died, if it is pending.
        waited: when it had waited for its peers, or for data; 0.0: nobody knows.
        state: 'ended', 'failed', 'pending', or 'brief' where it ended before the loop slept.
    """

    rank: int
    record: Record
    start: float
    end: float
    waited: float
    state: str

    def move(self, by: float) -> None:
        """Shift it in time."""
        self.start += by
        self.end += by
        self.waited += by if self.waited else 0.0


def spans(rank: RankView) -> list[Span]:
    """The operations that are known of a rank, in the order in which they were issued."""
    found = []
    pending = {_key(record) for record in rank.recording.pending}
    last = {_key(record): record for record in rank.recording.last}
    last |= {_key(record): record for record in rank.recording.pending if not _ended(last, record)}
    for key, record in sorted(last.items(), key=lambda item: item[1].issued):
        start = end = record.issued
        if record.ended:
            end, state = record.ended, "failed" if record.failed else "ended"
        elif key in pending:
            end, state = present(rank), "pending"
        else:
            state = "brief"
        end = max(end, start + BRIEF)
        waited = record.arrived or record.first
        waited = rank.time(waited) if start < waited < end else 0.0
        found.append(Span(rank.rank, record, rank.time(start), rank.time(end), waited, state))
    return found


def present(rank: RankView) -> float:
    """The last moment of which something is known of a rank, on its own clock."""
    vitals = rank.recording.vitals
    return rank.now if rank.alive else max(vitals.flushed, rank.recording.began)


def _key(record: Record) -> tuple[object, ...]:
    return record.group, record.op, record.number, record.root, record.tag, record.issued


def _ended(last: dict[tuple[object, ...], Record], record: Record) -> bool:
    known = last.get(_key(record))
    return known is not None and known.ended > 0
