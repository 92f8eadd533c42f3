"""How fast a job goes: two views of it, some time apart, as a table of plain values. Pure.

Where a view is the first of its rank, or the rank has written nothing since the one before, nothing is known
of its speed: then the values are None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aiodist.observe.calls import RankCalls, calls_of
from aiodist.observe.recorder.reading import Line, Record
from aiodist.observe.view import Doing, JobView, RankView
from aiodist.observe.words import call, message


@dataclass(frozen=True, slots=True)
class RateRow:
    """A rank, as it is and as it went between two views.

    Args:
        rank, host, pid, epoch: of the process.
        doing: 'running', 'waiting', …: the names of `Doing`.
        since: seconds for which it has been doing that; 0.0: not known.
        what: the operation that it waits for, else its last one, 'all_reduce #41'; '' where there is none.
        group: the operation's; '' where that is not known.
        line: of the program that has issued it, 'train.py:41 in evaluate'; '' where that is not known.
        pending: it waits for that operation now.
        ops: operations that it has issued, a second.
        nbytes: bytes of their tensors, a second.
        waiting: the part of its time, from 0 to 1, that it has waited for peers.
        late: seconds by which its loop was late, the most of the last ten seconds.
        memory: resident bytes.
        cpu: processors that it has kept busy.
        issued, failed: operations, all that there were.
        asked, served: calls without an answer, of its own and of others at it.
    """

    rank: int
    host: str
    pid: int
    epoch: int
    doing: str
    since: float
    what: str
    group: str
    line: str
    pending: bool
    ops: float | None
    nbytes: float | None
    waiting: float | None
    late: float
    memory: int
    cpu: float | None
    issued: int
    failed: int
    asked: int = 0
    served: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Several ranks together.

    Args:
        ranks: how many.
        doing: how many of them do what, in the order of `Doing`.
        ops, nbytes, cpu, memory, issued, failed, asked, served: the sums.
        waiting: the mean.
        late: the most.
    """

    ranks: int
    doing: dict[str, int]
    ops: float | None
    nbytes: float | None
    waiting: float | None
    late: float
    memory: int
    cpu: float | None
    issued: int
    failed: int
    asked: int = 0
    served: int = 0


@dataclass(frozen=True, slots=True)
class RankNews:
    """Something that has happened to a rank.

    Args:
        rank: whose recorder says so.
        ago: seconds.
        text: what, in the rank's words.
        failure: an operation that has failed; else an event.
        past: it was before the job's present epoch, which its members formed since.
    """

    rank: int
    ago: float
    text: str
    failure: bool
    past: bool = False


def rows(before: JobView | None, now: JobView) -> tuple[RateRow, ...]:
    """A row for each rank that was seen, by rank.

    Args:
        before: the same job, as it was seen some time before; None: it was not.
    """
    known = {view.identity: view for view in before.ranks} if before is not None else {}
    return tuple(_row(known.get(view.identity), view) for view in now.ranks)


def totals(rows: Iterable[RateRow]) -> Totals:
    """All of these together."""
    rows = tuple(rows)
    shares = [row.waiting for row in rows if row.waiting is not None]
    doing = Counter(row.doing for row in rows)
    return Totals(
        ranks=len(rows),
        doing={one.name: doing[one.name] for one in Doing if doing[one.name]},
        ops=_sum(row.ops for row in rows),
        nbytes=_sum(row.nbytes for row in rows),
        waiting=sum(shares) / len(shares) if shares else None,
        late=max((row.late for row in rows), default=0.0),
        memory=sum(row.memory for row in rows),
        cpu=_sum(row.cpu for row in rows),
        issued=sum(row.issued for row in rows),
        failed=sum(row.failed for row in rows),
        asked=sum(row.asked for row in rows),
        served=sum(row.served for row in rows),
    )


_TROUBLE = {
    one.name: place for place, one in enumerate((Doing.dead, Doing.stopped, Doing.held, Doing.blocked))
}


def worst_first(rows: Iterable[RateRow]) -> list[RateRow]:
    """The dead, stopped, held and blocked ones; then those that wait, the longest first; then by rank."""

    def place(row: RateRow) -> tuple[int, float, int]:
        waited = row.since if row.doing == Doing.waiting.name else 0.0
        return _TROUBLE.get(row.doing, len(_TROUBLE)), -waited, row.rank

    return sorted(rows, key=place)


def news(job: JobView) -> list[RankNews]:
    """The failed operations and the events that its ranks remember, the newest first."""
    return sorted((one for view in job.ranks for one in _news(view)), key=lambda one: one.ago)


def age(job: JobView) -> float:
    """Seconds since its first rank that was seen began to record."""
    return max(view.now - view.recording.began for view in job.ranks)


def epoch(job: JobView) -> int:
    """The newest epoch that a rank has told of."""
    return max(view.recording.epoch for view in job.ranks)


def named(record: Record) -> str:
    """An operation in short: 'all_reduce #41', 'recv #3 from 1'."""
    to = {"send": "to", "recv": "from"}.get(record.op)
    return f"{message(record)[0]} #{record.number} {to} {record.root}" if to else call(record)


def placed(line: Line | None) -> str:
    """A line in short: 'train.py:41 in evaluate'; '' for None."""
    return f"{line.file.rpartition('/')[2]}:{line.number} in {line.function}" if line is not None else ""


def _row(before: RankView | None, view: RankView) -> RateRow:
    recording, vitals = view.recording, view.recording.vitals
    record = recording.pending[0] if recording.pending else view.last
    ops, nbytes, waiting = _speed(before, view)
    calls = calls_of(view) if view.alive else RankCalls()
    return RateRow(
        *(view.rank, view.host, recording.pid, recording.epoch, view.doing.name, view.since),
        what=named(record) if record is not None else "",
        group=record.group.name if record is not None and record.group is not None else "",
        line=placed(record.line) if record is not None else "",
        pending=bool(recording.pending),
        ops=ops,
        nbytes=nbytes,
        waiting=waiting,
        late=vitals.late,
        memory=view.memory,
        cpu=_cpu(before, view),
        issued=vitals.issued,
        failed=vitals.failed,
        asked=calls.asked,
        served=calls.served,
    )


def _speed(before: RankView | None, view: RankView) -> tuple[float | None, float | None, float | None]:
    """Operations, bytes, and seconds of waiting, in each second between what a rank has written."""
    if not view.alive or view.recording.left:
        return 0.0, 0.0, 0.0
    if before is None:
        return None, None, None
    seconds = view.recording.vitals.flushed - before.recording.vitals.flushed
    if seconds <= 0:
        standing = view.doing in (Doing.stopped, Doing.held)
        return (0.0, 0.0, 0.0) if standing else (None, None, None)
    ops = view.recording.vitals.issued - before.recording.vitals.issued
    nbytes = _moved(view) - _moved(before)
    waited = _waited(view) - _waited(before)
    return max(0, ops) / seconds, max(0, nbytes) / seconds, min(1.0, max(0.0, waited / seconds))


def _moved(view: RankView) -> int:
    return sum(one.total for one in view.recording.sums)


def _waited(view: RankView) -> float:
    """Seconds for which a rank has waited for peers, with what is pending."""
    flushed = view.recording.vitals.flushed
    pending = sum(max(0.0, (one.arrived or flushed) - one.issued) for one in view.recording.pending)
    return pending + sum(one.waited for one in view.recording.sums)


def _cpu(before: RankView | None, view: RankView) -> float | None:
    if not view.alive:
        return 0.0
    if before is None or view.now <= before.now:
        return None
    return max(0.0, view.cpu - before.cpu) / (view.now - before.now)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _news(view: RankView) -> Iterator[RankNews]:
    recording = view.recording
    found = recording.about.get("entered")
    entered = found if isinstance(found, float) else 0.0
    for record in recording.last:
        if record.failed:
            where = f" at {placed(record.line)}" if record.line is not None else ""
            text = f"{named(record)} has failed{where}"
            ago = max(0.0, view.now - record.ended)
            yield RankNews(view.rank, ago, text, failure=True, past=record.ended < entered)
    for event in recording.events:
        ago = max(0.0, view.now - event.at)
        yield RankNews(view.rank, ago, event.text, failure=False, past=event.at < entered)
