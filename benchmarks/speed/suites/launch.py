"""The time from the command to its end, for a job of two ranks that does one all_reduce."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.harness.crew import CrewError
from benchmarks.harness.peers import Peer, environment
from benchmarks.harness.run import Run, Step

_JOBS = Path(__file__).parent.parent / "jobs"
_SIZE = 2
_LIMIT = 60.0
NAMES = {
    "aiodist": "aiodist run",
    "gloo": "torchrun",
    "openmpi": "mpirun (Open MPI)",
    "mpich": "mpirun (MPICH)",
}


def launch(run: Run) -> list[Step]:
    """All launchers in turns."""
    return [Step("launch", "one all_reduce", partial(_launch, run))]


def command(peer: Peer) -> list[str]:
    """The command with which a user would start the job."""
    job = str(_JOBS / f"with_{peer.kind}.py")
    if peer.kind == "aiodist":
        return [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(_SIZE), job]
    if peer.kind == "gloo":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(_SIZE), job]
    return peer.command([sys.executable, job], _SIZE)


def _launch(run: Run) -> None:
    peers = run.peers(*NAMES)
    taken: dict[str, list[float]] = {}
    for turn in range(2 if run.settings.quick else 5):
        for peer in peers:
            if turn and peer.name not in taken:
                continue  # it failed before
            run.progress.show(f"{NAMES[peer.name]} {turn + 1}")
            try:
                taken.setdefault(peer.name, []).append(_once(peer))
            except CrewError as error:
                taken.pop(peer.name, None)
                run.results.note(str(error))
    for name, values in taken.items():
        run.results.add("launch", "launch to exit", name, values, ranks=_SIZE)


def _once(peer: Peer) -> float:
    began = time.perf_counter()
    process = subprocess.Popen(
        command(peer),
        env=environment(peer),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_LIMIT)
        taken = time.perf_counter() - began
    except BaseException as error:
        process.terminate()  # launchers end their ranks then
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CrewError(f"{NAMES[peer.name]}: no end within {_LIMIT:g} s") from None
        raise
    if process.returncode:
        last = output.decode(errors="replace").strip().splitlines()[-5:]
        raise CrewError(f"{NAMES[peer.name]} exited with {process.returncode}: {' / '.join(last)}")
    return taken
