"""`python -m tests.launchers [NAME …]`: run each launcher, and print docs/launchers-table.md's tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from tests.launchers import head_node
from tests.launchers.case import Case
from tests.launchers.cases import CASES
from tests.launchers.ground import ROOT, Ground
from tests.launchers.jobs import STAYS, Outcome, left, pid_of_rank_1, run, started

HEAD_NODE = "head-node"
_HELLO = str(ROOT / "examples" / "hello.py")
_DIGITS = str(ROOT / "examples" / "train_digits.py")

_LINE = re.compile(r"rank (\d+) of (\d+): local rank (\d+) of (\d+), node (\d+) of (\d+), .*sum (\d+)")


def main() -> int:
    """Run the command; 1 if a launcher that is here failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.launchers", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"only launchers whose names contain one of these; {HEAD_NODE}: the second table",
    )
    parser.add_argument("--into", type=Path, default=Path("/tmp/aiodist-launchers"), help="for environments")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.names or any(n in case.name for n in options.names)]
    failed = False
    with Ground(options.into) as ground:
        if chosen:
            print("| Launcher | hello | digits | a rank is killed |\n|---|---|---|---|", flush=True)
        for case in chosen:
            row = _row(case, ground)
            failed = failed or any("**" in cell for cell in row)
            print("|", " | ".join([case.name, *row]), "|", flush=True)
        if not options.names or HEAD_NODE in options.names:
            print("\n| aiodist launch, 2 hosts | |\n|---|---|", flush=True)
            for looked_at, came in head_node.rows(ground):
                failed = failed or "**" in came
                print("|", looked_at, "|", came, "|", flush=True)
    return int(failed)


def _row(case: Case, ground: Ground) -> list[str]:
    row = []
    looks = (_hello,) if case.own else (_hello, _digits) if case.mpi else (_hello, _digits, _killed)
    for look in looks:
        try:
            row.append(look(case, ground))
        except unittest.SkipTest as reason:
            return [*row, f"not run: {str(reason)[:120]}"]
        except AssertionError as error:
            row.append(f"**{str(error)[:200]}**")
    return [*row, "", ""][:3]


def _hello(case: Case, ground: Ground) -> str:
    done = run(case.make(ground, [_HELLO]), ground)
    said = dict.fromkeys(match.groups() for match in _LINE.finditer(done.text))  # Ray shows lines twice
    found = sorted(tuple(map(int, one)) for one in said)
    size = len(case.places)
    expected = [(rank, size, *place, size * (size + 1) // 2) for rank, place in enumerate(case.places)]
    _check(done.code == 0 and found == expected, f"code {done.code}: {found}", done)
    return f"{done.seconds:.1f} s"


def _digits(case: Case, ground: Ground) -> str:
    done = run(case.make(ground, [_DIGITS, "--epochs", "3", "--batch", "64"]), ground)
    difference = re.search(r"largest weight difference to one process: (\S+)", done.text)
    right = difference is not None and float(difference[1]) < 1e-4
    _check(done.code == 0 and right, f"code {done.code}", done)
    return f"{done.seconds:.1f} s"


def _killed(case: Case, ground: Ground) -> str:
    """Kill rank 1 while all wait → the exit code, whether rank 1 is named, what is left a second later."""
    script = ground.folder / "stays.py"
    script.write_text(STAYS)
    with started(case.make(ground, [str(script)]), ground) as (jobs, texts):
        pid = pid_of_rank_1(texts)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for job in jobs:
                job.wait(60)
        seconds = time.monotonic() - began
        codes = sorted({job.returncode for job in jobs}, key=str)
        text = "".join(path.read_text(errors="replace") for path in texts)
        named = bool(re.search(r"(rank\s*:?|task|Process name:)\s+1\b", text))  # by a rank or a launcher
        time.sleep(1)
        stay = len(left(ground)) - sum(job.poll() is None for job in jobs)
        shown = "/".join("still runs" if code is None else str(code) for code in codes)
        return f"ends in {seconds:.1f} s with {shown}, rank 1 {'' if named else 'not '}named, {stay} left"


def _check(right: bool, said: str, done: Outcome) -> None:
    if not right:
        print(done.text[-3000:], file=sys.stderr)
        raise AssertionError(said)


if __name__ == "__main__":
    sys.exit(main())
