"""Running a case: its processes, what they print, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.launchers.case import Commands
from tests.launchers.ground import MARK, ROOT, Ground

PATIENCE = 240.0
"""Seconds for a job to end."""

_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "AIODIST_", "OMPI_", "PMI", "SLURM_", "PET_", "OPAL_")


@dataclass(frozen=True)
class Outcome:
    """What came of one job: exit code of its first command, all that was printed, seconds."""

    code: int
    text: str
    seconds: float


STAYS = """
import os
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        print(f"<{pg.rank} {os.getpid()}>", flush=True)
        while True:
            await pg.barrier()

dist.run(main())
"""


def run(commands: Commands, ground: Ground) -> Outcome:
    began = time.monotonic()
    with started(commands, ground) as (jobs, texts):
        deadline = began + PATIENCE
        for job in jobs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(max(0.1, deadline - time.monotonic()))
        seconds = time.monotonic() - began
        codes = [job.returncode for job in jobs]
        text = "".join(path.read_text(errors="replace") for path in texts)
        code = next((code if code is not None else -1 for code in codes if code != 0), 0)
        return Outcome(code, text, seconds)


@contextlib.contextmanager
def started(commands: Commands, ground: Ground) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[Path]]]:
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
        for pid in left(ground, daemons=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for job in jobs:
            job.wait()


def left(ground: Ground, *, daemons: bool = False) -> list[int]:
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


def pid_of_rank_1(texts: list[Path]) -> int:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for path in texts:
            match = re.search(r"<1 (\d+)>", path.read_text(errors="replace"))
            if match:
                return int(match[1])
        time.sleep(0.05)
    raise AssertionError("rank 1 never came")
