"""How a rank's function ended, as the rank says it, and what follows for the test."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.base.callers import Whose, short_path, whose
from aiodist.base.errors import ForgottenAwait, GroupAborted, PeerClosed, PeerLost, name_ranks
from aiodist.testing.parcel import pack, unpack

_CHECKS = tuple(str(Path(__file__).with_name(name)) for name in ("conformance_", "issued.py", "programs.py"))
TAIL = 30  # lines of the output of a rank that says nothing itself


@dataclass(frozen=True, slots=True)
class Report:
    """A rank's report.

    Args:
        kind: 'passed', 'failed', 'skipped' or 'xfailed'.
        when: it ended, in nanoseconds of the monotonic clock.
        line: the error in a line; of a test that is skipped, the reason.
        place: 'test_sum.py:12': the user's line.
        text: the traceback.
        shown: the same as pytest shows it, if pytest runs the test.
        follows: it only tells what another rank's end has caused here.
    """

    kind: str
    when: int = 0
    line: str = ""
    place: str = ""
    text: str = ""
    shown: Any = None
    follows: bool = False

    def write(self, folder: Path, rank: int) -> None:
        """Write it down, whole or not at all."""
        fresh = folder / f".{rank}.{os.getpid()}"
        fresh.write_bytes(pack(self))
        fresh.rename(folder / f"rank{rank}")

    @classmethod
    def read(cls, folder: Path, rank: int) -> Report | None:
        """That of a rank, if it wrote one."""
        try:
            found = unpack((folder / f"rank{rank}").read_bytes())
        except FileNotFoundError:
            return None
        assert isinstance(found, cls)
        return found


def visible(files: Sequence[str]) -> list[bool]:
    """Which frames of a traceback say something to the author of a test, by their files, outermost first.

    Not the library's own, nor what they call; but those of the public checks, whose asserts are the test's.
    """
    ours = [whose(file) is Whose.ours and not file.startswith(_CHECKS) for file in files]
    programs = [
        place for place, file in enumerate(files) if whose(file) is Whose.program or file.startswith(_CHECKS)
    ]
    if not programs:
        return [True] * len(files)
    ends = len(files) if not any(ours[programs[-1] :]) else programs[-1] + 1
    return [
        place < ends and not ours[place] and whose(file) is not Whose.loop for place, file in enumerate(files)
    ]


def kind_of(error: BaseException) -> str:
    """What an exception means for a test."""
    outcomes: Any = sys.modules.get("_pytest.outcomes")
    if outcomes is not None and isinstance(error, outcomes.XFailed):
        return "xfailed"
    skips = (unittest.SkipTest,) if outcomes is None else (unittest.SkipTest, outcomes.Skipped)
    return "skipped" if isinstance(error, skips) else "failed"


def follows(error: BaseException) -> bool:
    """Whether an error only tells of another rank's end."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(follows, error.exceptions))
    return isinstance(error, (GroupAborted, PeerLost, PeerClosed))


def line_of(error: BaseException) -> str:
    """'ValueError: the batch is bad'; the first line of the message."""
    text = str(getattr(error, "message", "") or error).strip().partition("\n")[0]
    if isinstance(error, (GroupAborted, PeerLost)):
        text = text.partition(": ")[0]  # its reason is told by the rank that it names
    if isinstance(error, AssertionError) and text.startswith("assert "):
        return text  # as pytest does
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(error: BaseException) -> str:
    """The innermost line of the program."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if whose(frame.filename) is Whose.program:
            return f"{short_path(frame.filename)}:{frame.lineno}"
    for _, file, line, _ in _forgotten(error):
        return f"{short_path(file)}:{line}"
    return ""


def _forgotten(error: BaseException) -> list[tuple[str, str, int, int]]:
    """The program's lines that an error is about, where it was raised by none of them."""
    if not isinstance(error, ForgottenAwait):
        return []
    return [origin for origin in error.origins if origin[1]]


def is_told_by_line(error: BaseException) -> bool:
    """Whether the lines that an error names say more than its traceback, which has none of the program."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(_forgotten(error)) and all(whose(frame.filename) is not Whose.program for frame in frames)


def text_of(error: BaseException) -> str:
    """The traceback, with the program's frames only, where there are any."""
    if is_told_by_line(error):
        lines = [
            (file, line, linecache.getline(file, line).strip()) for _, file, line, _ in _forgotten(error)
        ]
        shown = [f"{short_path(file)}:{line}\n    {text}" for file, line, text in lines]
        return "\n".join([*shown, f"{type(error).__name__}: {error}"])
    trace = traceback.TracebackException.from_exception(error)
    for one in _chained(trace):
        kept = zip(one.stack, visible([frame.filename for frame in one.stack]), strict=True)
        one.stack = traceback.StackSummary.from_list([frame for frame, keep in kept if keep])
    return "".join(trace.format()).rstrip()


def _chained(trace: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    todo: list[traceback.TracebackException | None] = [trace]
    while todo:
        one = todo.pop()
        if one is not None:
            yield one
            todo += [one.__cause__, one.__context__, *(one.exceptions or ())]


def same_lines(words_of: list[tuple[int, str]]) -> list[str]:
    """'ranks 0 and 2: …': ranks that say the same share a line."""
    found: dict[str, list[int]] = {}
    for rank, words in words_of:
        found.setdefault(words, []).append(rank)
    return [f"{name_ranks(ranks)}: {words}" for words, ranks in found.items()]
