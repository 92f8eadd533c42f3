"""Running a staged problem until the job says why it stands still, and checking what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiodist.testing.hosts import Hosts
from benchmarks.deaths.staged.problem import PROBLEMS
from benchmarks.harness.peers import AIODIST, environment

PROGRAM = Path(__file__).with_name("problem.py")
RANKS = 4
AFTER = 3.0  # seconds after which something stands still
PATIENCE = 90.0

_SLOW = "20mbit"  # the rate of the slow cable; that of the others
_FAST = "1gbit"


@dataclass(frozen=True)
class Staged:
    """A problem: what has to be told of it.

    Args:
        name: in `problem.PROBLEMS`.
        title: of the box, as far as it goes.
        words: that have to be in the box, besides the line of the cause.
        line: whether the line of the cause has to be there.
    """

    name: str
    title: str
    words: tuple[str, ...]
    line: bool = True


STANDS, SLOWER = "the job stands still", "is slower than the others"
ALL = (
    Staged("branches", STANDS, ("rank 2 takes another branch", "ranks 0, 1 and 3 wait")),
    Staged("late", STANDS, ("for rank 2 of 4", "its tasks")),
    Staged("blocked", STANDS, ("for rank 2 of 4", "its event loop is blocked")),
    Staged("held", STANDS, ("for rank 2 of 4", "a call holds its interpreter")),
    Staged("stopped", STANDS, ("for rank 2 of 4", "it is stopped", "kill -CONT"), line=False),
    Staged("deadlock", STANDS, ("ranks 1 and 2 wait for each other",)),
    Staged("unreceived", STANDS, ("send #0 to rank 1", "for rank 1", "rank 2 waits in it")),
    Staged("disk", STANDS, ("for rank 2 of 4", "No space left on device")),
    Staged("link", SLOWER, ("from rank 2", "is slow"), line=False),
    Staged("straggler", SLOWER, ("rank 2 came last", "waited")),
)


class AbsentError(Exception):
    """The problem cannot be staged here; the text says why."""


def line_of(name: str) -> str:
    """'problem.py:41': the line that is marked as the cause of a problem."""
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1):
        if line.endswith(f"# cause: {name}"):
            return f"{PROGRAM.name}:{number}"
    raise ValueError(f"no line is marked as the cause of {name}")


@dataclass(frozen=True)
class Told:
    """What a job said.

    Args:
        box: the first box; '' where there was none in time.
        seconds: after the start.
        missing: what it should have said, and did not.
    """

    box: str
    seconds: float
    missing: tuple[str, ...]


def stage(problem: Staged) -> Told:
    """Run a problem until it is told, or for `PATIENCE` seconds.

    Raises:
        AbsentError: it cannot be staged here.
    """
    began = time.monotonic()
    with _running(problem.name) as process:
        box = _first_box(process, problem.title, began + PATIENCE)
        seconds = time.monotonic() - began
    wanted = [problem.title, *problem.words, *([line_of(problem.name)] if problem.line else [])]
    return Told(box, seconds, tuple(word for word in wanted if word not in box))


def tell_all(names: Sequence[str]) -> int:
    """Stage all problems, or those that are named, and print the table; 1 where something was told wrong."""
    print("| Problem | What was told, in its first line | after | right |\n|---|---|---|---|", flush=True)
    wrong = 0
    for problem in ALL:
        if names and problem.name not in names:
            continue
        what = (PROBLEMS[problem.name].__doc__ or "").strip().rstrip(".")
        try:
            told = stage(problem)
        except AbsentError as absent:
            print(f"| {what} | not staged: {absent} | | |", flush=True)
            continue
        wrong += bool(told.missing)
        rows = told.box.splitlines()
        first = rows[1].removeprefix("│").strip() if len(rows) > 1 else "nothing"
        right = "yes" if not told.missing else f"no: {', '.join(map(repr, told.missing))} is missing"
        print(f"| {what} | {first} | {told.seconds:.0f} s | {right} |", flush=True)
        if told.missing:
            print(told.box, file=sys.stderr)
    return 1 if wrong else 0


def _first_box(process: subprocess.Popen[str], title: str, until: float) -> str:
    assert process.stdout is not None
    box: list[str] = []
    timer = threading.Timer(max(1.0, until - time.monotonic()), os.killpg, (process.pid, signal.SIGINT))
    timer.start()
    try:
        for row in process.stdout:
            text = row.partition("│ ")[2].rstrip() if "│ " in row else row.rstrip()
            if "╭─ aiodist:" in text:
                box = [text]
            elif box:
                box.append(text)
                if "╰─" in text:
                    if title in box[0]:
                        return "\n".join(box)
                    box = []
    finally:
        timer.cancel()
        timer.join()
    return "\n".join(box)


@contextlib.contextmanager
def _running(name: str) -> Iterator[subprocess.Popen[str]]:
    variables = environment(AIODIST) | {
        "AIODIST_STALL_AFTER": str(AFTER),
        "AIODIST_EVICT_AFTER": str(2 * PATIENCE),
        "PYTHONUNBUFFERED": "1",
    }
    with contextlib.ExitStack() as stack:
        if name == "link":
            commands = stack.enter_context(_apart())
            variables["AIODIST_TRANSPORT"] = "tcp"
        else:
            commands = [[*_RUN, f"--nproc-per-node={RANKS}", str(PROGRAM), name]]
        processes = [stack.enter_context(_started(command, variables)) for command in commands]
        yield processes[0]


_RUN = [sys.executable, "-m", "aiodist", "run"]


@contextlib.contextmanager
def _started(command: Sequence[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables,
        start_new_session=True,
        cwd=PROGRAM.parent,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        process.stdout.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _apart() -> Iterator[list[list[str]]]:
    """The command of each host: namespaces with cables, of which rank 2's is slow."""
    if os.geteuid() != 0:
        raise AbsentError("network namespaces need root")
    try:
        hosts = Hosts(RANKS, _FAST)
        hosts.__enter__()
    except unittest.SkipTest as error:
        raise AbsentError(str(error)) from error
    try:
        slow = hosts.enter(2)
        subprocess.run(
            [*slow, *f"tc qdisc replace dev eth0 root tbf rate {_SLOW} burst 64kb latency 400ms".split()],
            check=True,
        )
        meet = f"--nnodes={RANKS} --nproc-per-node=1 --master-addr={hosts.address(0)} --master-port=29400"
        yield [
            [*hosts.enter(host), *_RUN, *meet.split(), f"--node-rank={host}", str(PROGRAM), "link"]
            for host in range(RANKS)
        ]
    finally:
        hosts.__exit__(None, None, None)
