"""Facts about ranks in words, one line each; what ranks told is made fit for a terminal. Pure."""

from __future__ import annotations

from aiodist.observe.view import RankView
from aiodist.recorder.reading import Line, Record
from aiodist.sanitize import one_line

_LONGEST = 120  # characters of a name that a rank told


def operation(record: Record) -> str:
    """'all_reduce #12 of world', 'recv #3 from rank 2 with tag 7 in world'; peers by their global rank."""
    group = record.group
    name = "an unknown group" if group is None else told(group.name)
    if record.op not in ("send", "recv"):
        return f"{told(record.op)} #{record.number} of {name}"
    there = "anybody" if record.root < 0 else f"rank {peer(record)}"
    tag = f" with tag {record.tag}" if record.tag else ""
    return f"{record.op} #{record.number} {'to' if record.op == 'send' else 'from'} {there}{tag} in {name}"


def peer(record: Record) -> int:
    """The global rank of a message's peer; its group rank where the group is not known."""
    ranks = () if record.group is None else record.group.ranks
    return ranks[record.root] if 0 <= record.root < len(ranks) else record.root


def place(line: Line | None) -> str:
    """'train.py:41 in evaluate'; '' where nobody knows."""
    if line is None:
        return ""
    return told(f"{line.file.rpartition('/')[2]}:{line.number} in {line.function}")


def where(rank: RankView) -> str:
    """'host-b, pid 4711'."""
    return f"{told(rank.host)}, pid {rank.recording.pid}"


def told(text: object) -> str:
    """What a rank told, as a short line."""
    return one_line(str(text), _LONGEST)


def span(seconds: float) -> str:
    """'340 ms', '12.3 s', '4 min'."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120.0 else f"{seconds / 60:.0f} min"
