"""The launcher's word on a job, as it is stored: who, how, when, in which line, and what to do."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace

import pytest

from aiodist.launch.outcome import outcome_of, place_in, script_of
from aiodist.launch.verdict import Ending, NodeReport, Verdict, judge
from aiodist.observe.outcome import Outcome

NOW = 1_700_000_000.0
COMMAND = (sys.executable, "-u", "/home/u/train.py", "--lr", "1")
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 40, in <module>',
    '  File "/home/u/train.py", line 16, in step',
    "ValueError: bad data",
)
CRASH = (
    "Fatal Python error: Segmentation fault",
    "Thread 0x00007f6442dfb6c0 (most recent call first):",
    '  File "/home/u/other.py", line 42 in watch',
    "Current thread 0x00007f644b07fb80 (most recent call first):",
    '  File "/home/u/train.py", line 14 in main',
    '  File "/home/u/train.py", line 40 in <module>',
)


def ending(rank: int, code: int, **more: object) -> Ending:
    ended = Ending(rank, rank, 0, "box", 100 + rank, code, 1_500_000_000 + rank, wall=NOW - 10)
    return replace(ended, **more)  # type: ignore[arg-type]


def symptom(
    rank: int, error: str = "PeerLost: lost rank 1: process 9 ended (in barrier #3 of group 'w')"
) -> Ending:
    return ending(rank, 1, symptom=True, error=error)


def told(*endings: Ending) -> Outcome:
    verdict = judge([NodeReport(0, "box", endings, turn=1)])
    found = outcome_of(verdict, "r", COMMAND, 1, NOW)
    assert found is not None
    assert (
        Outcome.from_json(found.to_json() | {"lines": list(found.lines), "others": list(found.others)})
        == found
    )
    return found


def test_an_exception_is_told_with_its_line() -> None:
    found = told(symptom(0), ending(1, 1, error="ValueError: bad data", words=TRACEBACK), symptom(2))
    assert (found.rank, found.script, found.size, found.code) == (1, "train.py", 3, 1)
    assert found.title == "rank 1 failed first: exit code 1 at 22:13:10 UTC"
    assert found.error == "ValueError: bad data (/home/u/train.py:16 in step)"
    assert found.advice == "repair what rank 1 reported; its output has the whole traceback"
    assert found.others == (
        "ranks 0 and 2 noticed: lost rank 1: process 9 ended (in barrier #3 of group 'w')",
    )
    assert found.verdict.title == f"{found.title} · {found.error}"
    assert found.verdict.lines[-1] == f"→ {found.advice}"


@pytest.mark.parametrize(
    ("code", "words", "how", "advice"),
    [
        (-signal.SIGKILL, (), "killed by SIGKILL", "find out who killed rank 1: often the kernel does"),
        (
            -signal.SIGSEGV,
            CRASH,
            "killed by SIGSEGV",
            "crashed in native code at /home/u/train.py:14 in main:",
        ),
        (-signal.SIGTERM, (), "killed by SIGTERM", "find out who sent rank 1 this signal"),
        (3, (), "exit code 3", "see why rank 1 ended by itself with exit code 3"),
    ],
)
def test_how_a_rank_ended_and_what_to_do(code: int, words: tuple[str, ...], how: str, advice: str) -> None:
    found = told(symptom(0), ending(1, code, words=words))
    assert found.title == f"rank 1 failed first: {how} at 22:13:10 UTC"
    assert advice in found.advice


@pytest.mark.parametrize(
    "error",
    [
        "PeerLost: lost rank 1: it closed the group while others needed it (in barrier #3 of group 'w')",
        "GroupAborted: rank 1 aborted the group: ValueError: x (in barrier #3 of group 'w')",
    ],
)
def test_a_rank_that_ended_well_while_others_needed_it_is_the_one(error: str) -> None:
    found = told(symptom(0, error), ending(1, 0), symptom(2, error))
    assert found.title == "rank 1 ended while others needed it: exit code 0 at 22:13:10 UTC"
    assert (found.rank, found.code) == (1, 1)
    assert "the same operations" in found.advice
    spoke = told(symptom(0, error), ending(1, 0, error="KeyError: 'x'", words=("KeyError: 'x'",)))
    assert "KeyError: 'x'" in spoke.lines and spoke.error.startswith("KeyError: 'x'")


def test_what_was_mended_and_what_was_stopped() -> None:
    assert outcome_of(Verdict(0), "r", COMMAND, 1, NOW) is None
    mended = outcome_of(Verdict(0, restarts=1, limit=2), "r", COMMAND, 1, NOW, before=("rank 1 failed",))
    assert mended is not None and mended.title == "the job ended well after 1 restart"
    assert (mended.code, mended.rank, mended.others) == (0, -1, ("rank 1 failed",))
    stopped = judge([NodeReport(0, "box", (ending(0, 130, asked=2),), turn=1, signum=2)])
    found = outcome_of(stopped, "r", COMMAND, 1, NOW)
    assert found is not None and found.title == "stopped by SIGINT: all 1 worker(s) have ended"
    lost = outcome_of(judge([NodeReport(0, "box", (ending(0, -15, asked=15),))], 2), "r", COMMAND, 2, NOW)
    assert lost is not None and lost.title == "node 1 was lost" and lost.rank == -1


def test_the_line_of_the_program() -> None:
    installed = f'  File "{json.__file__}", line 7, in deep'
    assert place_in((*TRACEBACK[:3], installed, "OSError: x")) == "/home/u/train.py:16 in step"
    assert place_in(("aiodist: a.py:3 in f: PeerLost: lost rank 1",)) == "a.py:3 in f"
    assert place_in(("no line",)) == place_in(()) == ""


def test_what_workers_run() -> None:
    assert script_of((sys.executable, "-u", "-m", "pkg.train", "x")) == "pkg.train"
    assert script_of(("/bin/train", "-m")) == "train"
    assert script_of(()) == "?"
