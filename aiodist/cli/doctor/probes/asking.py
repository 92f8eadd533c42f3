"""Questions to processes of their own, and what they find: a broken driver can hang or kill one, and no more.

All are started at once, and have the same time. Who has no answer then is killed, with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aiodist.cli.doctor.text import one_line

# -P, and the package last on the path: nothing of the current folder is taken for a library.
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from aiodist.cli.doctor.apart import main; main()"
_ROOT = str(Path(__file__).parents[4])
_GRACE = 1.0  # for a killed process to be gone; one that hangs in a driver never is


@dataclass(frozen=True)
class Question:
    """A question to one process.

    Args:
        name: of the probe, see `apart`.
        arguments: for it.
        environ: its environment variables; None: ours.
    """

    name: str
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Answer:
    """Its answer.

    Attributes:
        facts: what it found; {} where it found nothing.
        trouble: why there are no facts, in one line; else ''.
        absent: the module that is not installed, if that is why.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    absent: str = ""


def ask(
    questions: Sequence[Question],
    limit: float,
    waiting: Callable[[str, int, int], object] = lambda name, done, total: None,
) -> list[Answer]:
    """Ask all at once, and end all that is left of those who were asked → the answers, in the same order.

    Args:
        questions: each for a process of its own.
        limit: seconds that they have together.
        waiting: called with the name of each whose answer is waited for, how many are there, and of how many.
    """
    deadline = time.monotonic() + limit
    asked: list[_Asked] = []
    try:
        for question in questions:
            asked.append(_Asked(question))  # noqa: PERF401 - those that were begun are to be ended
        found: list[Answer] = []
        for one in asked:
            waiting(one.name, len(found), len(asked))
            found.append(one.answer(deadline, limit))
        return found
    finally:
        for one in asked:
            one.end()


class _Asked:
    """One process, which has begun; `end` kills it."""

    def __init__(self, question: Question) -> None:
        self.name = question.name
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._files = contextlib.ExitStack()
        command = [sys.executable, "-P", "-c", _BOOT, _ROOT, self.name, *question.arguments]
        try:
            # Files, not pipes: what it leaves running in the background would hold a pipe open.
            self._out = self._files.enter_context(_scratch())
            self._err = self._files.enter_context(_scratch())
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env=question.environ,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"no process can be started ({error.strerror or error})"

    def answer(self, deadline: float, limit: float) -> Answer:
        if self._process is None:
            return Answer(trouble=self._failure)
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(trouble=f"no answer within {limit:g} s")
        self._out.seek(0)
        try:
            said = json.loads(self._out.read())
            return Answer(said.get("facts", {}), said.get("trouble", ""), said.get("absent", ""))
        except (ValueError, AttributeError):
            self._err.seek(0)
            lines = self._err.read().decode(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            return Answer(trouble=one_line(f"it {_ended(code)}{last}"))

    def end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self._files.close()


def _scratch() -> IO[bytes]:
    """A file without a name. Not every container has a folder to write to."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("aiodist-doctor"), "w+b")
    return tempfile.TemporaryFile()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} and said nothing"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
