"""`python -m tests.launchers [NAME …]`: run each launcher, and print the table of docs/launchers.md."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.launchers.case import Case, Commands
from tests.launchers.cases import CASES
from tests.launchers.ground import MARK, ROOT, Ground

_HELLO = str(ROOT / "examples" / "hello.py")
_DIGITS = str(ROOT / "examples" / "train_digits.py")

_PATIENCE = 240.0
_LINE = re.compile(r"rank (\d+) of (\d+): local rank (\d+) of (\d+), node (\d+) of (\d+), .*sum (\d+)")
_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "AIODIST_", "OMPI_", "PMI", "SLURM_", "PET_", "OPAL_")


@dataclass(frozen=True)
class Outcome:
    """What came of one job: exit code of its first command, all that was printed, seconds."""

    code: int
    text: str
    seconds: float


def main() -> int:
    """Run the command; 1 if a launcher that is here failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.launchers", description=__doc__)
    parser.add_argument("names", nargs="*", help="only launchers whose names contain one of these")
    parser.add_argument("--into", type=Path, default=Path("/tmp/aiodist-launchers"), help="for environments")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.names or any(n in case.name for n in options.names)]
    print("| Launcher | hello | digits | a rank is killed |\n|---|---|---|---|", flush=True)
    failed = False
    with Ground(options.into) as ground:
        for case in chosen:
            row = _row(case, ground)
            failed = failed or any("**" in cell for cell in row)
            print("|", " | ".join([case.name, *row]), "|", flush=True)
    return int(failed)


def _row(case: Case, ground: Ground) -> list[str]:
    row = []
    for look in (_hello,) if case.own else (_hello, _digits, _killed):
        try:
            row.append(look(case, ground))
        except unittest.SkipTest as reason:
            return [*row, f"not run: {str(reason)[:120]}"]
        except AssertionError as error:
            row.append(f"**{str(error)[:200]}**")
    return [*row, "", ""][:3]


def _hello(case: Case, ground: Ground) -> str:
    done = _run(case.make(ground, [_HELLO]), ground)
    said = dict.fromkeys(match.groups() for match in _LINE.finditer(done.text))  # Ray shows lines twice
    found = sorted(tuple(map(int, one)) for one in said)
    size = len(case.places)
    expected = [(rank, size, *place, size * (size + 1) // 2) for rank, place in enumerate(case.places)]
    _check(done.code == 0 and found == expected, f"code {done.code}: {found}", done)
    return f"{done.seconds:.1f} s"


def _digits(case: Case, ground: Ground) -> str:
    done = _run(case.make(ground, [_DIGITS, "--epochs", "3", "--batch", "64"]), ground)
    difference = re.search(r"largest weight difference to one process: (\S+)", done.text)
    right = difference is not None and float(difference[1]) < 1e-4
    _check(done.code == 0 and right, f"code {done.code}", done)
    return f"{done.seconds:.1f} s"


def _killed(case: Case, ground: Ground) -> str:
    """Kill rank 1 while all wait → the exit code, whether rank 1 is named, what is left a second later."""
    script = ground.folder / "stays.py"
    script.write_text(_STAYS)
    with _started(case.make(ground, [str(script)]), ground) as (jobs, texts):
        pid = _pid_of_rank_1(texts)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for job in jobs:
                job.wait(60)
        seconds = time.monotonic() - began
        codes = sorted({job.returncode for job in jobs}, key=str)
        text = "".join(path.read_text(errors="replace") for path in texts)
        named = bool(re.search(r"rank 1\b", text))
        time.sleep(1)
        left = len(_left(ground)) - sum(job.returncode is None for job in jobs)
        shown = "/".join("still runs" if code is None else str(code) for code in codes)
        return f"ends in {seconds:.1f} s with {shown}, rank 1 {'' if named else 'not '}named, {left} left"


_STAYS = """
import os
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        print(f"<{pg.rank} {os.getpid()}>", flush=True)
        while True:
            await pg.barrier()

dist.run(main())
"""


def _run(commands: Commands, ground: Ground) -> Outcome:
    began = time.monotonic()
    with _started(commands, ground) as (jobs, texts):
        deadline = began + _PATIENCE
        for job in jobs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(max(0.1, deadline - time.monotonic()))
        seconds = time.monotonic() - began
        codes = [job.returncode for job in jobs]
        text = "".join(path.read_text(errors="replace") for path in texts)
        code = next((code if code is not None else -1 for code in codes if code != 0), 0)
        return Outcome(code, text, seconds)


@contextlib.contextmanager
def _started(
    commands: Commands, ground: Ground
) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[Path]]]:
    """Start a job; at the end everything that bears its mark is killed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environ = {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **commands.env}
    jobs: list[subprocess.Popen[bytes]] = []
    texts: list[Path] = []
    try:
        for number, line in enumerate([*commands.before, *commands.lines]):
            if number == len(commands.before):
                commands.ready()
            mark = ground.mark if number >= len(commands.before) else f"{ground.mark}-daemon"
            texts.append(ground.folder / f"out-{number}.txt")
            with open(texts[-1], "wb") as out:
                jobs.append(
                    subprocess.Popen(
                        line,
                        env={**environ, MARK: mark},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        cwd=ROOT,
                        start_new_session=True,
                    )
                )
        yield jobs[len(commands.before) :], texts
    finally:
        for pid in _left(ground, daemons=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for job in jobs:
            job.wait()


def _left(ground: Ground, *, daemons: bool = False) -> list[int]:
    """Processes that bear the mark, without this one and zombies; those of a job, or also its daemons."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        mark = next((word for word in words if word.startswith(f"{MARK}=".encode())), b"")
        named = f"{MARK}={ground.mark}".encode()
        pid = int(path.parent.name)
        if (mark == named or (daemons and mark.startswith(named))) and pid != os.getpid():
            found.append(pid)
    return found


def _pid_of_rank_1(texts: list[Path]) -> int:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for path in texts:
            match = re.search(r"<1 (\d+)>", path.read_text(errors="replace"))
            if match:
                return int(match[1])
        time.sleep(0.05)
    raise AssertionError("rank 1 never came")


def _check(right: bool, said: str, done: Outcome) -> None:
    if not right:
        print(done.text[-3000:], file=sys.stderr)
        raise AssertionError(said)


if __name__ == "__main__":
    sys.exit(main())
