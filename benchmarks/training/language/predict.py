"""What `aiodist sim` says of a step of each algorithm on many ranks: time only, nothing is trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness.command import ROOT
from benchmarks.training.language.job import JobError

LATENCY = "50us"  # of each host's link
SCRIPT = "benchmarks/training/language/simulated.py"


def alone(shape: str) -> dict[str, Any]:
    """Seconds of a step without others (`alone`), measured now."""
    found: dict[str, Any] = json.loads(_output("benchmarks.training.language.alone", shape).splitlines()[-1])
    return found


def predictions(
    ways: Sequence[str], ranks: Sequence[int], rates: Sequence[str], step: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Seconds of a step: a host for each rank, and a link of a rate for each host.

    Args:
        step: as `alone` gives it.
    """
    sizes = [str(step[name]) for name in ("values", "forward", "backward", "update")]
    for rate in rates:
        for count in ranks:
            for way in ways:
                network = f"hosts={count}x1,link={rate}:{LATENCY}"
                said = _output("aiodist", "sim", SCRIPT, "--network", network, "--", way, *sizes)
                seconds = json.loads(said.splitlines()[0])["step"]
                yield {"way": way, "ranks": count, "rate": rate, "step": seconds}


def _output(module: str, *words: str) -> str:
    """What a command prints.

    Raises:
        JobError: it failed.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise JobError(f"{module} {' '.join(words)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout
