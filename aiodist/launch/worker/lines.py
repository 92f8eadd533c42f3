"""Bytes of a worker's output → whole lines, and the last words of a worker that failed. Pure.

A carriage return ends a line too: progress bars write '\\r 40%' over and over. On a terminal such a
line is *live* (drawn over by the next); elsewhere it is a line like any other.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MAX_LINE = 64 * 1024  # a longer line is cut, so that a worker that writes no newline costs bounded memory
_LAST_LINES, _LAST_WIDTH = 400, 2000  # of what is kept for the report
_ENDS = re.compile(rb"[\r\n]")

# Endings that only say that *another* rank is in trouble.
_SYMPTOMS = ("PeerLost", "GroupAborted", "CollectiveTimeout", "QuorumLost", "Evicted", "CallUnknown")
_NOTICED = re.compile(
    r"^aiodist: (?:.+?:\d+ in .+?: )?"
    r"((?:PeerLost|GroupAborted|Collective(?:Timeout|Mismatch)|CallUnknown): .*)"
)
"""The one line that a rank prints for an error of another one (`group/runtime/tracebacks`)."""

_UNCAUGHT = 1
"""Exit code of Python after an exception that nobody has caught."""

_ITS_OWN = ", this process"
"""Text of a `CollectiveTimeout` on a rank that others had waited for."""

_TORCHS_PREFIX = re.compile(rb"^\[rank\d+\]: ?")  # before each line of a traceback, once torch has a group
_TOLD_BY_TORCH = re.compile(rf"\bDistBackendError: ({'|'.join(_SYMPTOMS)}):")
_ERROR_LINE = re.compile(r"^(?:  [|+ ]*)?((?:\w+\.)*\w+)(?::|$)")
_TRACE = ("Traceback (most recent call last)", "Fatal Python error:")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


_BEGINS = re.compile(
    rb"Traceback \(most recent call last\)|  [+] Exception Group Traceback|aiodist: |interrupted at "
)


def begins_error(line: bytes) -> bool:
    """Whether a line is the first one of an error that a worker reports."""
    return _BEGINS.match(without_prefix(line)) is not None


def without_prefix(line: bytes) -> bytes:
    """A line without what torch puts before it."""
    return _TORCHS_PREFIX.sub(b"", line)


class Piece(NamedTuple):
    """One line without its end. `live`: the next one draws over it."""

    text: bytes
    live: bool


class LineSplitter:
    """A splitter of a byte stream into whole lines.

    Args:
        in_place: whether a line that ends in a carriage return is live (a terminal shows it).
    """

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._partial = b""
        self._returned: bytes | None = None  # the line that a carriage return just ended

    def feed(self, data: bytes) -> list[Piece]:
        """The lines that `data` completes."""
        pieces: list[Piece] = []
        data = self._partial + data
        start = 0
        for match in _ENDS.finditer(data, len(self._partial)):
            text, start = data[start : match.start()], match.end()
            if match.group() == b"\n":
                if text or self._returned is None:
                    pieces.append(Piece(text, False))
                elif self._in_place:  # '\r\n', perhaps apart: what was live is there to stay
                    pieces.append(Piece(self._returned, False))
                self._returned = None
            elif text:
                pieces.append(Piece(text, self._in_place))
                self._returned = text
        self._partial = data[start:]
        if self._partial:
            self._returned = None
        while len(self._partial) > MAX_LINE:
            pieces.append(Piece(self._partial[:MAX_LINE], False))
            self._partial = self._partial[MAX_LINE:]
        return pieces

    def finish(self) -> list[Piece]:
        """The rest when the stream has ended: a last line without a newline."""
        text, self._partial = self._partial, b""
        if not text and self._in_place and self._returned is not None:
            text = self._returned
        self._returned = None
        return [Piece(text, False)] if text else []


class LastWords:
    """The end of a worker's stderr, kept to show why it failed."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_LAST_LINES)

    def add(self, *lines: bytes) -> None:
        """Add the next lines, without their ends."""
        self._lines.extend(line[:_LAST_WIDTH] for line in lines[-_LAST_LINES:])

    def _decoded(self) -> list[str]:
        return [without_prefix(line).decode("utf-8", "replace").rstrip() for line in self._lines]

    def excerpt(self, limit: int = 40) -> tuple[str, ...]:
        """At most `limit` lines: from the last traceback on (with its causes), else the last ten."""
        lines = self._decoded()
        start = _trace_start(lines)
        if start is None:
            return tuple(_strip(lines)[-10:])
        return tuple(_shorten(_strip(lines[start:]), limit))

    @property
    def error(self) -> str:
        """The line that ends the traceback, without the module: 'PeerLost: lost rank 1…'; '': none."""
        lines = self._decoded()
        start = _trace_start(lines)
        error = ""
        for line in lines[start:] if start is not None else ():
            noticed = _NOTICED.match(line)
            if noticed is not None:
                error = noticed[1]
                continue
            match = _ERROR_LINE.match(line)
            if match and not line.startswith(
                ("Traceback", "At:", *_CHAIN)
            ):  # torch's C++ ends by "At:", lines
                error = match.group(1).rpartition(".")[2] + line[match.end(1) :]
        return error

    def symptom(self, code: int) -> bool:
        """Whether a worker has failed by an error that only reports another rank's trouble.

        A rank prints one line for such an error when nobody has caught it. A traceback may be of one that the
        program has logged and dealt with: it counts where nothing was written after it, and where the exit
        code is that of an error which nobody has caught.

        Args:
            code: its exit code; negative: the signal.
        """
        lines = self._decoded()
        start, error = _trace_start(lines), self.error
        if start is not None and _NOTICED.match(lines[start]):
            return True
        if start is None or code > _UNCAUGHT or _goes_on(lines[start:]):
            return False
        kind = error.partition(":")[0]
        return (kind in _SYMPTOMS and _ITS_OWN not in error) or _TOLD_BY_TORCH.search(error) is not None


def _goes_on(lines: Sequence[str]) -> bool:
    """Whether something was written after the error that ends a traceback."""
    for line in reversed(lines):
        if _ERROR_LINE.match(line):
            return False
        if line and not line.startswith((" ", "At:")):
            return True
    return False


def _trace_start(lines: Sequence[str]) -> int | None:
    """Index of the last traceback's first line, taken back over the causes chained before it."""
    starts = [
        i for i, line in enumerate(lines) if any(mark in line for mark in _TRACE) or _NOTICED.match(line)
    ]
    if not starts:
        return None
    start = starts.pop()
    while starts and any(line in _CHAIN for line in lines[max(0, start - 3) : start]):
        start = starts.pop()
    return start


def _strip(lines: Sequence[str]) -> list[str]:
    """The lines without the empty ones at both ends."""
    kept = list(lines)
    while kept and not kept[-1]:
        kept.pop()
    while kept and not kept[0]:
        kept.pop(0)
    return kept


def _shorten(lines: list[str], limit: int) -> list[str]:
    """At most `limit` lines; the middle goes, since both ends of a traceback matter."""
    if len(lines) <= limit:
        return lines
    head = limit // 4
    tail = limit - head - 1
    return [*lines[:head], f"  … {len(lines) - head - tail} lines left out …", *lines[-tail:]]
