"""`python -m tests.launchers.compare [--turns N]`: head-node launchers on the same two hosts, side by side.

Each starts two ranks a host, over the same sshd. Measured are the seconds from the command to the end of the
first all_reduce on the last rank, interleaved, as medians, beside ssh and the ranks' imports alone; and what
is said, how it ends and what is left where a rank is killed, the launcher is interrupted or killed, and a
host's cable is pulled.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from tests.launchers.case import Commands, Make
from tests.launchers.cases.mpi import mpich_two, open_mpi_5_two
from tests.launchers.cases.ours import launch_two
from tests.launchers.cases.services import horovodrun_two
from tests.launchers.cases.torch import deepspeed_two
from tests.launchers.ground import Ground
from tests.launchers.jobs import STAYS, left, pid_of_rank_1, run, started

_LIMIT = 60.0  # seconds for a job to end by itself
_FIRST = """
import time
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        await pg.all_reduce(np.ones(1))
        print(f"<first {time.monotonic()}>", flush=True)

dist.run(main())
"""
_IMPORTS = 'import time, numpy, aiodist, aiodist.group.runtime.init; print(f"<first {time.monotonic()}>")'


def _bare(ground: Ground, script: list[str]) -> Commands:
    """ssh alone: two processes on each host, which import what a rank imports."""
    bin, (a, _) = ground.environment("plain"), ground.hosts
    twice = f"({bin}/python -c '{_IMPORTS}' & {bin}/python -c '{_IMPORTS}' & wait)"
    return Commands([ground.on(a, ground.ssh, host, twice) for host in ground.hosts])


_LAUNCHERS: dict[str, Make] = {
    "ssh and imports alone": _bare,
    "aiodist launch": launch_two,
    "mpirun (Open MPI 5)": open_mpi_5_two,
    "mpiexec (MPICH 5)": mpich_two,
    "deepspeed 0.19.8": deepspeed_two,
    "horovodrun 0.28.1": horovodrun_two,
}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.launchers.compare", description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--into", type=Path, default=Path("/tmp/aiodist-launchers"), help="for environments")
    options = parser.parse_args()
    with Ground(options.into) as ground:
        _first_sums(ground, options.turns)
        _ends(ground)
    return 0


def _first_sums(ground: Ground, turns: int) -> None:
    script = ground.folder / "first.py"
    script.write_text(_FIRST)
    taken: dict[str, list[float]] = {name: [] for name in _LAUNCHERS}
    for turn in range(turns + 1):
        for name, make in _LAUNCHERS.items():
            try:
                commands = make(ground, [str(script)])
            except unittest.SkipTest as reason:
                if not turn:
                    print(f"{name} is not here: {reason}", file=sys.stderr)
                continue
            began = time.monotonic()
            done = run(commands, ground)
            came = [float(match) for match in re.findall(r"<first ([\d.]+)>", done.text)]
            if len(came) != 4:
                print(f"{name}: {len(came)} came, code {done.code}\n{done.text[-2000:]}", file=sys.stderr)
            elif turn:  # the first one warms up
                taken[name].append(max(came) - began)
    print("| Launcher | first all_reduce | least to most |\n|---|---|---|")
    for name, seconds in taken.items():
        if seconds:
            spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
            print(f"| {name} | {statistics.median(seconds):.2f} s | {spread} |", flush=True)


Job = subprocess.Popen[bytes]


def _kill_rank(ground: Ground, job: Job, texts: list[Path]) -> float:
    os.kill(pid_of_rank_1(texts), signal.SIGKILL)
    return 1.0


def _interrupt(ground: Ground, job: Job, texts: list[Path]) -> float:
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    return 1.0


def _kill_launcher(ground: Ground, job: Job, texts: list[Path]) -> float:
    job.kill()
    return 1.0


def _pull(ground: Ground, job: Job, texts: list[Path]) -> float:
    ground.pull_cable(ground.hosts[1])
    return 10.0


_EVENTS: dict[str, Callable[[Ground, Job, list[Path]], float]] = {
    "rank 1 is killed": _kill_rank,
    "Ctrl-C": _interrupt,
    "the launcher is killed": _kill_launcher,
    "a cable is pulled": _pull,
}
"""What happens, and after how many seconds we look who is left."""


def _ends(ground: Ground) -> None:
    script = ground.folder / "stays.py"
    script.write_text(STAYS)
    print(
        "\n| Launcher | what happens | ends | rank 1 or host named | left |\n|---|---|---|---|---|",
        flush=True,
    )
    for name, make in _LAUNCHERS.items():
        if make is _bare:
            continue
        for event, happen in _EVENTS.items():
            try:
                commands = make(ground, [str(script)])
            except unittest.SkipTest:
                continue
            row = _event(ground, commands, happen)
            print("|", " | ".join([name, event, *row]), "|", flush=True)


def _event(
    ground: Ground, commands: Commands, happen: Callable[[Ground, Job, list[Path]], float]
) -> list[str]:
    with started(commands, ground) as (jobs, texts):
        pid_of_rank_1(texts)
        before = sum(path.stat().st_size for path in texts)
        began = time.monotonic()
        look_after = happen(ground, jobs[0], texts)
        try:
            ended = _wait(jobs[0], began, look_after)
            time.sleep(max(0.0, began + look_after - time.monotonic()))
            stay = len(left(ground)) - (jobs[0].poll() is None)
            ended = _wait(jobs[0], began, _LIMIT) if ended is None else ended
            how = (
                f"still runs after {_LIMIT:g} s" if ended is None else f"{ended:.1f} s, {jobs[0].returncode}"
            )
            said = b"".join(path.read_bytes() for path in texts)[before:].decode(errors="replace")
            named: bool | None = bool(re.search(rf"rank 1\b|{ground.hosts[1]}\b", said))
            print(f"----- {said[-1500:]}", file=sys.stderr)
            if happen is _kill_launcher:
                how, named = "", None
            return [how, {None: "", True: "yes", False: "no"}[named], f"{stay} after {look_after:g} s"]
        finally:
            ground.plug_cable(ground.hosts[1])


def _wait(job: Job, began: float, limit: float) -> float | None:
    """Wait for a job's end → seconds since it began; None: it goes on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(max(0.0, began + limit - time.monotonic()))
        return time.monotonic() - began
    return None


if __name__ == "__main__":
    sys.exit(main())
