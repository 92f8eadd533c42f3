"""Facts about ranks in words, one line each; what ranks told is made fit for a terminal. Pure."""

from __future__ import annotations

import os

from aiodist.base.operations import OBJECT_TAGS
from aiodist.base.sanitize import one_line
from aiodist.observe.figures import size, span
from aiodist.observe.recorder.reading import Line, Record
from aiodist.observe.view import Doing, RankView

_LONGEST = 120  # characters of a name that a rank told
_LONGEST_PATH = 60  # of a file, and of a function


def operation(record: Record) -> str:
    """'all_reduce #12 of world', 'recv #3 from rank 2 with tag 7 in world'; peers by their global rank."""
    group = record.group
    name = "an unknown group" if group is None else reported(group.name)
    if record.op not in ("send", "recv"):
        return f"{call(record)} of {name}"
    there = "anybody" if record.root < 0 else f"rank {peer(record)}"
    op, number = message(record)
    tag = f" with tag {number}" if number else ""
    return f"{op} #{record.number} {'to' if record.op == 'send' else 'from'} {there}{tag} in {name}"


def call(record: Record) -> str:
    """A collective as the user has called it, with its number among the user's: 'all_gather_object #12'."""
    return f"{reported(record.called or record.op)} #{nth(record)}"


def nth(record: Record) -> int:
    """The number of the user's call, of which an operation may be a step."""
    return record.number if record.nth < 0 else record.nth


def message(record: Record) -> tuple[str, int]:
    """The user's call that a message was issued by, and the tag that the user gave: ('recv_object', 7)."""
    if record.tag < OBJECT_TAGS:
        return record.op, record.tag
    return f"{record.op}_object", record.tag - OBJECT_TAGS


def payload(record: Record) -> str:
    """'float32, 4.2 MB'; '' of an operation without data."""
    return f"{reported(record.dtype)}, {size(record.nbytes)}" if record.nbytes else ""


def peer(record: Record) -> int:
    """The global rank of a message's peer; its group rank where the group is not known."""
    ranks = () if record.group is None else record.group.ranks
    return ranks[record.root] if 0 <= record.root < len(ranks) else record.root


def place(line: Line | None) -> str:
    """'train.py:41 in evaluate'; '' where nobody knows. Of a long path the beginning is left out."""
    if line is None:
        return ""
    path = one_line(_short(line.file), 4096)
    if len(path) > _LONGEST_PATH:
        path = f"…{path[1 - _LONGEST_PATH :]}"
    return f"{path}:{line.number} in {one_line(line.function, _LONGEST_PATH)}"


def at(line: Line | None) -> str:
    """' at train.py:41 in evaluate', to go on with after an operation; '' where the line is unknown."""
    return f" at {place(line)}" if line is not None else ""


def _short(path: str) -> str:
    """A path relative to the current directory, if it lies below; else the file's name."""
    name = path.rpartition("/")[2]
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the directory is gone; another drive
        return name
    return name if relative.startswith(os.pardir) else relative


def where(rank: RankView) -> str:
    """'host-b, pid 4711'."""
    return f"{reported(rank.host)}, pid {rank.recording.pid}"


def reported(text: object) -> str:
    """What a rank told, as a short line."""
    return one_line(str(text), _LONGEST)


def doing(rank: RankView) -> str:
    """The state of a rank in words: 'its event loop is blocked, for 8.1 s'."""
    what, since = rank.doing, rank.since
    text = what.value
    if what is Doing.waiting:
        record = rank.recording.pending[0]
        text = f"it waits in {operation(record)}{at(record.line)}"
    elif what is Doing.running and rank.last is not None:
        ago = span(max(0.0, rank.now - rank.last.issued))
        last = f"{operation(rank.last)}{at(rank.last.line)}"
        return f"it goes on in its program; its last call was {last}, {ago} ago"
    return f"{text}, for {span(since)}" if since > 0 and what not in (Doing.dead, Doing.left) else text
