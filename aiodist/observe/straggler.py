"""Which rank the others wait for, again and again: by who issued each collective last. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.observe.recorder.reading import Group, Line, Record
from aiodist.observe.view import JobView, RankView
from aiodist.observe.waits import MESSAGES, holds_up

ENOUGH = 20  # operations below which nothing is said
YOUNG = 1.0  # seconds for which nothing is said of a job: ranks do not begin in the same moment
OFTEN = 0.6  # of the operations in which it has to be last; of two ranks, one is last in half of them anyway
LOST = 0.05  # of the others' time that has to be lost by it


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank for which the others wait.

    Args:
        rank: which.
        last: in how many collectives it came last, of so many `seen`.
        lost: seconds that all others together waited in these.
        share: the part of the others' time that this is.
        line: to which it most often came last.
    """

    rank: int
    last: int
    seen: int
    lost: float
    share: float
    line: Line | None


def last_of(by: Mapping[int, Record], ranks: Mapping[int, RankView]) -> tuple[int, float] | None:
    """The rank that came last to a collective, and the seconds that others together waited for it.

    Args:
        by: the collective, as each of its ranks has issued it.
        ranks: the job's, by rank.

    Returns:
        None where nobody had to wait for it, or it came too shortly after the one before it, for how well
        their clocks are known.
    """
    issued = sorted((ranks[rank].time(record.issued), rank) for rank, record in by.items())
    (latest, slowest), (before, _) = issued[-1], issued[-2]
    held = [latest - time for time, rank in issued[:-1] if holds_up(by[slowest], slowest, rank)]
    if not held or latest - before <= 2 * max(ranks[rank].error for rank in by):
        return None
    return slowest, sum(held)


def find_straggler(job: JobView) -> Straggler | None:
    """The rank for which the others wait most, if one is worth a word and the job is not young.

    Only collectives count that all members of their group have issued, as far as the recorders reach back;
    of late ones, those that hold up others, by more than the clocks' error.
    """
    if all(rank.now - rank.recording.began < YOUNG for rank in job.ranks):
        return None
    calls: dict[Group, dict[int, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for rank in job.ranks:
        known: dict[int, dict[int, dict[int, Record]]] = {}  # a place has as many numbers as ranks
        for record in rank.recording.last:
            if record.group is not None and record.op not in MESSAGES and len(record.group.ranks) > 1:
                mark = id(record.group)
                if mark not in known:
                    known[mark] = calls[record.group]
                known[mark][record.number][rank.rank] = record
    whole = [
        by
        for group, of_group in calls.items()
        for by in of_group.values()
        if len(by) >= len(group.ranks) and by.keys() >= set(group.ranks)
    ]
    if len(whole) < ENOUGH:
        return None
    clocks = {rank.rank: rank for rank in job.ranks}
    last: Counter[int] = Counter()
    lines: dict[int, Counter[Line | None]] = defaultdict(Counter)
    lost: dict[int, float] = defaultdict(float)
    times: list[float] = []
    for by in whole:
        times.append(max(clocks[rank].time(record.issued) for rank, record in by.items()))
        if (found := last_of(by, clocks)) is not None:
            slowest, seconds = found
            last[slowest] += 1
            lines[slowest][by[slowest].line] += 1
            lost[slowest] += seconds
    if not last:
        return None
    worst, count = last.most_common(1)[0]
    span = max(times) - min(times)
    share = lost[worst] / max(1e-9, span * (len(job.ranks) - 1))
    least = OFTEN if len(job.ranks) > 2 else (1 + OFTEN) / 2
    if count < least * len(whole) or share < LOST:
        return None
    line = lines[worst].most_common(1)[0][0]
    return Straggler(worst, count, len(whole), lost[worst], min(1.0, share), line)
