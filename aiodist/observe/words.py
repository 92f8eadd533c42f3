"""What is said of ranks, operations and lines, in one line each. Pure. Text of others is made fit to show."""

from __future__ import annotations

import math
import os

from aiodist.observe.view import Doing, RankView
from aiodist.recorder.reading import Line, Record
from aiodist.sanitize import one_line


def operation(record: Record) -> str:
    """'all_reduce #7 of 'world' (float32, 4.0 MiB)'."""
    group = f" of '{one_line(record.group.name, 40)}'" if record.group else ""
    what = f" ({one_line(record.dtype, 20)}, {size(record.nbytes)})" if record.nbytes else ""
    tag = f", tag {record.tag}" if record.tag else ""
    if record.op in ("send", "recv") and record.group is not None:
        peer = "any rank"
        if 0 <= record.root < len(record.group.ranks):
            peer = f"rank {record.group.ranks[record.root]}"
        way = "to" if record.op == "send" else "from"
        return f"{record.op} {way} {peer}{tag}{group}{what}"
    return f"{one_line(record.op, 40)} #{record.number}{group}{what}"


def line(where: Line | None) -> str:
    """'train.py:41 in evaluate'; '' where it is not known."""
    if where is None:
        return ""
    return one_line(f"{short(where.file)}:{where.number} in {where.function}", 160)


def short(path: str) -> str:
    """A path relative to the current directory, if it lies below."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the directory is gone; another drive
        return path
    return path if relative.startswith(os.pardir) else relative


def size(nbytes: float) -> str:
    """'4.0 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def seconds(value: float) -> str:
    """'0.4 s', '31 s', '2 min 5 s', '3 h 2 min'."""
    if not math.isfinite(value):
        return "?"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def place(rank: RankView) -> str:
    """'host a, pid 17'."""
    return f"host {one_line(rank.host, 60)}, pid {rank.recording.pid}"


def doing(rank: RankView) -> str:
    """What a rank does, in words: 'its event loop does not turn for 8.1 s'."""
    what, since = rank.doing, rank.since
    text = what.value
    if what is Doing.waiting:
        record = rank.recording.pending[0]
        where = line(record.line)
        text = f"it waits in {operation(record)}" + (f" at {where}" if where else "")
    elif what is Doing.running and rank.last is not None:
        where = line(rank.last.line)
        text = f"it has gone on after {operation(rank.last)}" + (f" at {where}" if where else "")
        since = rank.now - rank.last.issued
    return f"{text}, for {seconds(since)}" if since > 0 and what not in (Doing.dead, Doing.left) else text
