"""A job as dumps of torch's flight recorder, one for each rank, for torch's analyzer. Pure.

    python -m torch.distributed.flight_recorder.fr_trace DIR

The analyzer takes what one rank has and another has not for an error, so nothing is left to it that only our
rings explain. Of each group it gets the numbers from where all ranks have them without a gap. What was in
flight when the ranks were looked at is left out, unless it has been so for `LONG`. Messages are left out: the
analyzer takes each of them for an operation of the whole group.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from typing import Any

from aiodist.base.operations import ROLES
from aiodist.observe.recorder.reading import Group
from aiodist.observe.spans import Span, present, spans
from aiodist.observe.view import Doing, JobView, RankView
from aiodist.observe.words import reported

VERSION = "2.10"
"""Of the dumps, as torch 2.13 writes them."""

LONG = 1.0
"""Seconds after which an operation that others have begun is missing on a rank, and not on its way."""

Json = dict[str, Any]
_Numbered = dict[int, Span]

_BACKEND = "gloo"  # the analyzer knows the names of torch's backends only
_NAMES = {kind.name: kind.name for kind, roles in ROLES.items() if not roles.message} | {"new_group": "split"}
_STATES = {"ended": "completed", "brief": "completed", "failed": "started", "pending": "started"}


def flight(job: JobView) -> dict[int, Json]:
    """The dump of each rank.

    Args:
        job: its ranks, placed on one clock (`clocks.place`).
    """
    found: dict[Group, dict[int, _Numbered]] = {}
    for rank in job.ranks:
        for span in spans(rank):
            if span.record.group is not None and span.record.op in _NAMES:
                of_group = found.setdefault(span.record.group, {})
                of_group.setdefault(rank.rank, {})[span.record.number] = span
    ranks = {rank.rank: rank for rank in job.ranks}
    end = max((rank.time(present(rank)) for rank in job.ranks), default=0.0)
    chosen = {group: _chosen(group, by_rank, ranks, end) for group, by_rank in found.items()}
    wall = job.ranks[0].recording.offset if job.ranks else 0.0
    return {rank.rank: _dump(rank, found, chosen, wall) for rank in job.ranks}


def _chosen(group: Group, found: Mapping[int, _Numbered], ranks: Mapping[int, RankView], end: float) -> range:
    """The numbers of a group's operations that are reported."""
    seen = [ranks[rank] for rank in group.ranks if rank in ranks]
    start = 0
    for rank in seen:
        numbers = found.get(rank.rank, {})
        if not numbers and any(one.group == group for one in rank.recording.sums):
            return range(0)  # its operations were pushed out by those of other groups
        start = max(start, _whole_from(numbers))
    last = max(number for numbers in found.values() for number in numbers)
    for number in range(start, last + 1):
        if not _is_known(number, seen, found, end):
            return range(start, number)
    return range(start, last + 1)


def _whole_from(numbers: _Numbered) -> int:
    """The number from which on there is no gap."""
    if not numbers:
        return 0
    first = max(numbers)
    while first - 1 in numbers:
        first -= 1
    return first


def _is_known(number: int, seen: list[RankView], found: Mapping[int, _Numbered], end: float) -> bool:
    """Whether what is known of an operation is more than that the ranks were not seen at the same moment."""
    starts = [numbers[number].start for numbers in found.values() if number in numbers]
    if not (starts and seen):
        return False  # a recorder's memory may hold anything
    began = min(starts)
    states = set()
    for rank in seen:
        span = found.get(rank.rank, {}).get(number)
        gone = rank.doing in (Doing.dead, Doing.left)
        told_at = end if gone else rank.time(rank.recording.vitals.flushed or present(rank))
        if (span is None or span.state == "pending") and told_at - began < LONG:
            states.add("in flight")
        else:
            states.add("missing" if span is None else _STATES[span.state])
    return len(states) == 1 or "in flight" not in states


def _dump(
    rank: RankView, found: Mapping[Group, Mapping[int, _Numbered]], chosen: Mapping[Group, range], wall: float
) -> Json:
    kept = [
        span
        for group, by_rank in found.items()
        for number, span in by_rank.get(rank.rank, {}).items()
        if number in chosen[group]
    ]
    kept.sort(key=lambda span: span.start)
    entries = [_entry(record_id, span, wall) for record_id, span in enumerate(kept)]
    groups = dict.fromkeys((*rank.recording.groups, *(group for group in found if rank.rank in group.ranks)))
    status: dict[Hashable, Json] = {}
    for place, group in enumerate(groups):
        of_group = [span for span in kept if span.record.group == group]
        ended = [span.record.number for span in of_group if _STATES[span.state] == "completed"]
        last = max((span.record.number for span in of_group), default=-1)
        status[place] = {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": max(ended, default=-1),
        }
    return {
        "version": VERSION,
        "comm_lib_version": "aiodist",
        "pg_config": {
            _uid(group): {"name": _uid(group), "desc": reported(group.name), "ranks": str(list(group.ranks))}
            for group in groups
        },
        "pg_status": status,
        "entries": entries,
    }


def _uid(group: Group) -> str:
    """The name of a group that no other group of the job has."""
    return f"{reported(group.name)}.{group.epoch}.{zlib.crc32(repr(list(group.ranks)).encode()):08x}"


def _entry(record_id: int, span: Span, wall: float) -> Json:
    record, group = span.record, span.record.group
    assert group is not None
    given, gotten = _sizes(record.op, list(record.shape), len(group.ranks))
    state = _STATES[span.state]
    line = record.line
    frames = [] if line is None else [{"name": line.function, "filename": line.file, "line": line.number}]
    started = round((span.start + wall) * 1e9)
    return {
        "record_id": record_id,
        "pg_id": 0,
        "process_group": (_uid(group), reported(group.name)),
        "collective_seq_id": record.number,
        "p2p_seq_id": 0,
        "op_id": record_id,
        "profiling_name": f"{_BACKEND}:{_NAMES[record.op]}",
        "input_sizes": [given],
        "input_dtypes": [record.dtype],
        "output_sizes": [gotten],
        "output_dtypes": [record.dtype],
        "time_created_ns": started,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": round((span.end + wall) * 1e9) if state == "completed" else None,
        "duration_ms": (span.end - span.start) * 1e3 if span.state == "ended" else None,
        "timeout_ms": 0,
        "frames": frames,
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        "thread_id": "",
        "thread_name": "",
    }


def _sizes(op: str, shape: list[int], ranks: int) -> tuple[list[int], list[int]]:
    """The shapes of what a rank gives and of what it gets, as the analyzer wants them."""
    if op == "all_gather":
        return shape, [ranks, *shape]
    return ([ranks, *shape], shape) if op == "reduce_scatter" else (shape, shape)
