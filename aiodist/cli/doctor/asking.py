"""Questions to processes of their own: a broken driver or library can hang or kill one, and no more.

All are started at once, and have the same time. Those that have not answered then are killed, with all that
they started.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from aiodist.base.environment.process import signal_name
from aiodist.cli.doctor.topic import ProcessAnswer, ProcessQuestion, one_line

Waiting = Callable[[str, int, int], object]
"""Called with what the answer that is waited for is about, how many are there, and of how many."""

# -P, and the package last on the path: nothing of the current folder is taken for a library.
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from aiodist.cli.doctor.apart import main; main()"
_ROOT = str(Path(__file__).parents[3])
_GRACE = 1.0  # for a killed process to be gone; one that hangs in a driver never is


class _Begun(NamedTuple):
    """A process that was asked, and the files that it writes to."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]


def ask(
    questions: Mapping[str, ProcessQuestion],
    environ: Mapping[str, str],
    limit: float,
    waiting: Waiting | None = None,
) -> dict[str, ProcessAnswer]:
    """Ask all at once, and end all that is left of the processes then → the answers, by the same names.

    Args:
        questions: each for a process of its own.
        environ: the processes' environment variables.
        limit: seconds that they have together.
        waiting: for progress.
    """
    deadline = time.monotonic() + limit
    begun: dict[str, _Begun] = {}
    answers: dict[str, ProcessAnswer] = {}
    with contextlib.ExitStack() as stack:
        for name, question in questions.items():
            try:
                begun[name] = stack.enter_context(_begin(question, environ))
            except OSError as error:
                answers[name] = ProcessAnswer(
                    trouble=f"no process can be started ({error.strerror or error})"
                )
        for number, (name, question) in enumerate(questions.items()):
            if waiting is not None:
                waiting(question.about, number, len(questions))
            if name in begun:
                answers[name] = _answer(begun[name], deadline, limit)
    return answers


@contextlib.contextmanager
def _begin(question: ProcessQuestion, environ: Mapping[str, str]) -> Iterator[_Begun]:
    examine = question.examine
    command = [
        sys.executable,
        "-P",
        "-c",
        _BOOT,
        _ROOT,
        examine.__module__,
        examine.__name__,
        *question.arguments,
    ]
    # Files, not pipes: what it leaves running in the background would hold a pipe open.
    with _scratch() as out, _scratch() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
        )
        try:
            yield _Begun(process, out, err)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)


def _answer(begun: _Begun, deadline: float, limit: float) -> ProcessAnswer:
    try:
        code = begun.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return ProcessAnswer(trouble=f"no answer within {limit:g} s")
    begun.out.seek(0)
    try:
        return ProcessAnswer(*json.load(begun.out))
    except (ValueError, TypeError):
        begun.err.seek(0)
        lines = begun.err.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return ProcessAnswer(trouble=one_line(f"it {_ended(code)}{last}"))


def _scratch() -> IO[bytes]:
    """A file without a name. Not every container has a folder to write to."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("aiodist-doctor"), "w+b")
    return tempfile.TemporaryFile()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} and said nothing"
    return f"was killed by {signal_name(-code)}"
