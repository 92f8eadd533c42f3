"""What a job does in which nothing stands still, in a few lines, from two looks at it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.base.errors import name_ranks
from aiodist.observe.figures import rate, share, size, span
from aiodist.observe.rates import RateRow, age, rows, totals
from aiodist.observe.view import JobView, RankView
from aiodist.observe.words import at, operation, reported

_APART = 0.05
"""Of their time, by which ranks have to differ in how long they wait before one is called slower."""


def well(before: JobView | None, now: JobView) -> list[str]:
    """The lines.

    Args:
        before: the same job, as it was seen some time before; None: its speed is not known.
    """
    table = rows(before, now)
    all = totals(table)
    hosts = f"{len(now.hosts)} host{'s'[: len(now.hosts) > 1]}"
    unseen = f" ({now.size - len(table)} are not seen)" if len(table) < now.size else ""
    states = ", ".join(f"{count} {doing}" for doing, count in all.doing.items())
    since = span(age(now))
    lines = [
        f"{reported(now.name)}, {now.size} ranks{unseen} on {hosts}, since {since}: nothing stands still",
        f"{states}; {rate(all.ops)} operations/s, {size(all.nbytes)}/s; {all.issued} operations so far, "
        f"{all.failed} failed",
    ]
    return [*lines, *_last(now.ranks), *_pending(now.ranks), *_slowest(table), *_lag(table)]


def _last(ranks: Sequence[RankView]) -> Iterator[str]:
    """The operation that was issued last of all."""
    known = [(rank.time(rank.last.issued), rank, rank.last) for rank in ranks if rank.last is not None]
    if not known:
        yield "no rank has issued any operation yet"
        return
    _, rank, record = max(known, key=lambda one: one[0])
    ago = span(max(0.0, rank.now - record.issued))
    yield f"the last operation: {operation(record)}{at(record.line)}, {ago} ago, by rank {rank.rank}"


def _pending(ranks: Sequence[RankView]) -> Iterator[str]:
    """The line on ranks that wait, and for how long at most."""
    waiting = [rank for rank in ranks if rank.recording.pending]
    if not waiting:
        yield "no rank waits for an operation now"
        return
    oldest = max(rank.now - rank.recording.pending[0].issued for rank in waiting)
    who = name_ranks([rank.rank for rank in waiting])
    yield f"{who} {'wait' if len(waiting) > 1 else 'waits'} now, for {span(max(0.0, oldest))} at most"


def _slowest(table: Sequence[RateRow]) -> Iterator[str]:
    """The rank that waits least: the others wait for it."""
    known = sorted((row.waiting, row.rank) for row in table if row.waiting is not None)
    if len(known) < 2:
        return
    (least, slow), (second, _), (most, _) = known[0], known[1], known[-1]
    if second - least < _APART:
        yield f"the ranks wait for each other for {_between(least, most)} of their time: none is slow"
    else:
        yield (
            f"rank {slow} is the slowest: it waits for others for {share(least)} of its time, "
            f"they for {_between(second, most)} of theirs"
        )


def _between(least: float, most: float) -> str:
    return share(least) if share(least) == share(most) else f"{share(least)} to {share(most)}"


def _lag(table: Sequence[RateRow]) -> Iterator[str]:
    worst = max(table, key=lambda row: row.late)
    yield f"the event loops run; rank {worst.rank}'s was late by {span(worst.late)}, the most of all of late"
