"""The job of one run: a rank on each of some hosts, as network namespaces, started and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from aiodist.testing.hosts import Hosts
from benchmarks.harness.command import ROOT

_MORE = 240.0  # seconds for the start, and for the losses after the training


class JobError(Exception):
    """The error that a rank failed, or that the job did not end in time; says what was printed."""


def run(
    hosts: Hosts, ranks: int, words: Sequence[str], seconds: float, seen: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Run the ranks to their end → the last that rank 0 says: `curve` and `values`.

    Args:
        hosts: the first is the switch alone; ranks: one on each of the others.
        words: the arguments of `benchmarks.training.language.rank`.
        seconds: that they train.
        seen: called with what rank 0 says meanwhile.

    Raises:
        JobError: something went wrong.
    """
    said: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as log, _started(hosts, ranks, words, log) as processes:
        timer = threading.Timer(seconds + _MORE, _kill, [processes])
        timer.start()
        try:
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                said = json.loads(line)
                if "seen" in said:
                    seen(said["seen"])
            codes = [process.wait() for process in processes]
        finally:
            timer.cancel()
        if any(codes) or "curve" not in said:
            log.seek(0)
            printed = "".join(f"\n  {line}" for line in log.read().strip().splitlines()[-15:])
            raise JobError(f"ranks ended with {codes}{printed}")
    return said


@contextmanager
def _started(
    hosts: Hosts, ranks: int, words: Sequence[str], log: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes; they are gone in the end."""
    env = {**os.environ, **hosts.env, "MASTER_ADDR": hosts.address(1), "WORLD_SIZE": str(ranks)}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            command = [
                *hosts.enter(1 + rank),
                sys.executable,
                "-m",
                "benchmarks.training.language.rank",
                *words,
            ]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**env, "RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,  # a Ctrl-C is for the driver, which ends them
                )
            )
        yield processes
    finally:
        _kill(processes)
        for process in processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
