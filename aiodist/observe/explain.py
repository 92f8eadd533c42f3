"""What happened to a job, in ten lines at most, from what its ranks' recorders held. Pure.

The first line is the answer: who ended first, or that nobody has. Then what that rank did last, what the
others waited in, what went wrong, and what to do. Where a launcher has judged, its word is the answer: it has
seen how each process ended, and the recorders say only what these did last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from aiodist.base.errors import name_ranks
from aiodist.base.sanitize import one_line
from aiodist.observe.figures import span, time_of_day
from aiodist.observe.outcome import Outcome
from aiodist.observe.recorder.reading import Record
from aiodist.observe.verdict import Verdict
from aiodist.observe.view import Doing, JobView, RankView
from aiodist.observe.words import operation, place, reported, where

LINES = 10
FRESH = 0.5
"""Seconds between two signs of a process: deaths that are closer than that cannot be told apart."""

_LONG, _HEAD = 340, 200  # characters of what a rank told; those at its beginning, where it is longer
_WAITS = 3  # lines, at most, of operations that ranks wait in


def explain(
    job: JobView,
    verdicts: Sequence[Verdict],
    trace: str,
    *,
    outcome: Outcome | None = None,
    over: bool = False,
) -> list[str]:
    """The lines.

    Args:
        job: its ranks.
        verdicts: on it.
        trace: the command line that makes a trace of it.
        outcome: what its launcher says; None: nothing.
        over: it has ended, and this is what it left.
    """
    if outcome is not None:
        return _by_launcher(job, outcome, trace)
    dead = sorted((rank for rank in job.ranks if rank.doing is Doing.dead), key=last_sign)
    accused = _accused(job)
    first = [rank for rank in dead if rank.rank in accused] or (
        [rank for rank in dead if last_sign(rank) - last_sign(dead[0]) <= FRESH + rank.error]
        if not accused
        else [rank for rank in job.ranks if rank.rank in accused and rank.doing is Doing.left]
    )
    lines = [_title(job, first, len(dead), accused, over)]
    lines += [_last_of(rank) for rank in first[:2]]
    errors = _errors(job, dead)
    lines += [_described(error) for error in errors[:2]]
    end = [_advice(first, errors, verdicts, accused, over), f"see what led to it: {trace}"]
    room = LINES - len(lines) - len(end)
    judged = [reported(verdict.title) for verdict in verdicts[: max(1, room - _WAITS)]]
    live = [rank for rank in job.ranks if rank.doing not in (Doing.left, Doing.dead)]
    return [*lines, *judged, *_waits(live or dead, min(_WAITS, room - len(judged))), *end]


def ended(outcome: Outcome) -> list[str]:
    """The lines on a run whose ranks have left nothing: what its launcher says."""
    lines = [f"{_head(outcome.script, outcome.size)}: {outcome.title}"]
    lines += [line for line in (*outcome.lines, *outcome.others) if line]
    return [*lines, *_to_do(outcome)]


def _by_launcher(job: JobView, outcome: Outcome, trace: str) -> list[str]:
    size = max(outcome.size, job.size)
    lines = [f"{_head(job.name, size, len(job.hosts))}{_unseen(job, size)}: {outcome.title}"]
    if outcome.rank >= 0:
        culprit = next((rank for rank in job.ranks if rank.rank == outcome.rank), None)
        left = f"rank {outcome.rank} has left no record of what it did"
        lines.append(left if culprit is None else _last_of(culprit))
    if outcome.error:
        lines.append(f"rank {outcome.rank} told: {outcome.error}")
    end = [*_to_do(outcome), f"see what led to it: {trace}"]
    room = LINES - len(lines) - len(end)
    lines += outcome.others[: max(1, room - _WAITS)]
    others = [rank for rank in job.ranks if rank.rank != outcome.rank]
    return [*lines, *_were_in(others, LINES - len(lines) - len(end)), *end]


def _to_do(outcome: Outcome) -> list[str]:
    again = ["the job has begun again since; how that ends is told here then"] if outcome.again else []
    return [*again, *([f"to do: {outcome.advice}"] if outcome.advice else [])]


def _were_in(ranks: Sequence[RankView], most: int) -> list[str]:
    """In which operation ranks were when it failed, or their process ended."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        failed = [record for record in rank.recording.last if record.failed]
        record = (*rank.recording.pending[:1], *failed[-1:])
        if record:
            found.setdefault(f"{operation(record[0])}{_at(record[0])}", []).append(rank.rank)
    lines = [f"{name_ranks(sorted(who))} waited in {what}" for what, who in found.items()]
    return lines[: max(0, most)]


def last_sign(rank: RankView) -> float:
    """When a rank gave its last sign of life, on the clock of whoever looked."""
    vitals = rank.recording.vitals
    return rank.time(max(vitals.flushed, vitals.turned, rank.recording.began))


def _accused(job: JobView) -> set[int]:
    """The ranks that most others say they have lost first, or that aborted; none where nobody says so. One
    that lives is none of them."""
    lives = {rank.rank for rank in job.ranks if rank.doing not in (Doing.dead, Doing.left)}
    votes = Counter(one for rank in job.ranks for one in _lost(rank) if one not in lives)
    most = max(votes.values(), default=0)
    return {rank for rank, count in votes.items() if count == most}


def _lost(rank: RankView) -> set[int]:
    """The ranks that a rank says it has lost."""
    lost = rank.recording.about.get("lost")
    return {one for one in lost if type(one) is int} if isinstance(lost, list) else set()


@dataclass(frozen=True, slots=True)
class _Error:
    ranks: tuple[int, ...]  # that told the same
    wall: float  # when the first did, as the time of day
    text: str
    at: str  # in which operation and at which line the first was, where that has failed


def _described(error: _Error) -> str:
    """Of a long text the middle is left out: an error that ended the program has its line at the end."""
    text = error.text if len(error.text) <= _LONG else f"{error.text[:_HEAD]} … {error.text[_HEAD - _LONG :]}"
    return f"{name_ranks(list(error.ranks))} told {time_of_day(error.wall)}{error.at}: {one_line(text)}"


def _head(name: str, size: int, hosts: int = 0) -> str:
    """'train.py, 4 ranks on 1 host'."""
    on = f" on {hosts} host{'s'[: hosts > 1]}" if hosts else ""
    return f"{reported(name)}, {size} rank{'s'[: size != 1]}{on}"


def _unseen(job: JobView, size: int) -> str:
    missing = size - len(job.ranks)
    return f"; {missing} of them wrote nothing" if missing > 0 else ""


def _title(job: JobView, first: Sequence[RankView], dead: int, accused: set[int], over: bool) -> str:
    head = f"{_head(job.name, job.size, len(job.hosts))}{_unseen(job, job.size)}"
    if not first and accused:
        return f"{head}: {name_ranks(sorted(accused))} ended first, as the others say, and wrote nothing"
    if not first:
        return f"{head}: {'all that wrote have left, after an error' if over else 'no rank has died'}"
    who = name_ranks([rank.rank for rank in first])
    if first[0].doing is Doing.left:
        return f"{head}: {who} left first, as the others say"
    wall = last_sign(first[0]) - first[0].shift + first[0].recording.offset
    rest = f", {dead - len(first)} more after that" if dead > len(first) else ""
    apart = "" if len(first) == 1 else f", within {span(FRESH)} of each other"
    return f"{head}: {who} died first, {time_of_day(wall)}{apart}{rest}"


def _last_of(rank: RankView) -> str:
    """What a rank did last."""
    recording = rank.recording
    record = recording.pending[0] if recording.pending else rank.last
    head = f"rank {rank.rank} ({where(rank)})"
    if record is None:
        return f"{head} had not begun any operation that is known"
    did = "waited in" if recording.pending else "had last issued"
    before = last_sign(rank) - rank.shift - record.issued
    return f"{head} {did} {operation(record)}{_at(record)}, {span(max(0.0, before))} before its last sign"


def _waits(ranks: Sequence[RankView], most: int) -> list[str]:
    """What ranks wait in, the one that waits longest first; those that wait in the same on one line."""
    found: dict[tuple[str, str], list[RankView]] = {}
    for rank in sorted(ranks, key=lambda rank: -rank.since):
        if rank.recording.pending:
            record = rank.recording.pending[0]
            found.setdefault((operation(record), _at(record)), []).append(rank)
        elif rank.doing not in (Doing.running, Doing.dead):
            found.setdefault((rank.doing.value, ""), []).append(rank)
    lines = []
    for (what, at), those in found.items():
        who = name_ranks([rank.rank for rank in those])
        pending = bool(those[0].recording.pending)
        longest = max(_pending_for(rank) if pending else rank.since for rank in those)
        verb = " waited in" if pending else ":"
        lines.append(f"{who}{verb} {what}{at}, for {span(longest)}")
    if len(lines) > most:
        lines[most - 1 :] = [f"{len(lines) - most + 1} more waits are in the trace"]
    return lines


def _pending_for(rank: RankView) -> float:
    now = rank.now if rank.alive else last_sign(rank) - rank.shift
    return max(0.0, now - rank.recording.pending[0].issued)


def _errors(job: JobView, dead: Sequence[RankView]) -> list[_Error]:
    """The last event of each rank that told any, what several told once; those of dead ranks first, then the
    earliest first."""
    died = {rank.rank for rank in dead}
    found: dict[tuple[bool, str, str], _Error] = {}
    for rank in job.ranks:
        if not rank.recording.events:
            continue
        event = rank.recording.events[-1]
        wall = event.at + rank.recording.offset
        key = rank.rank not in died, event.text, _failed_at(rank)
        before = found.get(key)
        ranks, first = ((), wall) if before is None else (before.ranks, before.wall)
        found[key] = _Error((*ranks, rank.rank), min(first, wall), event.text, key[2])
    return [found[key] for key in sorted(found, key=lambda key: (key[0], found[key].wall))]


def _failed_at(rank: RankView) -> str:
    """' in all_reduce #12 of world (train.py:41 in main)': the last operation that failed; '': none did."""
    failed = [record for record in rank.recording.last if record.failed]
    return f" in {operation(failed[-1])}{_at(failed[-1])}" if failed else ""


def _advice(
    first: Sequence[RankView],
    errors: Sequence[_Error],
    verdicts: Sequence[Verdict],
    accused: set[int],
    over: bool,
) -> str:
    if not first:
        if accused:
            return f"to do: see how {name_ranks(sorted(accused))} ended: the output says it, or the launcher"
        if verdicts:
            return f"to do: look at {name_ranks(verdicts[0].ranks)}, which cause it"
        if over:
            return "to do: repair what the ranks told; their output has the whole tracebacks"
        return "to do: if the job stands still, look at the rank that others wait for"
    rank = first[0]
    if any(rank.rank in error.ranks for error in errors):
        return f"to do: repair what rank {rank.rank} reported; its log has the whole traceback"
    if rank.doing is Doing.left:
        return (
            f"to do: see where rank {rank.rank} leaves its group: every rank has to issue the same operations"
        )
    return (
        f"to do: rank {rank.rank} reported no error: its log, or on {reported(rank.host)} 'dmesg' "
        f"(out of memory?), says what ended it"
    )


def _at(record: Record) -> str:
    found = place(record.line)
    return f" ({found})" if found else ""
