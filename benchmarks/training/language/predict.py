"""What `aiodist sim` says of a step of each algorithm on many ranks: time only, nothing is trained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness.command import ROOT
from benchmarks.harness.crew import CrewError
from benchmarks.harness.peers import AIODIST, environment

LATENCY = "50us"  # of each host's link
SCRIPT = "benchmarks/training/language/simulated.py"


def predictions(
    ways: Sequence[str], ranks: Sequence[int], rates: Sequence[str], step: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Seconds of a step: a host for each rank, and a link of a rate for each host.

    Args:
        step: as `rank.alone` gives it.
    """
    sizes = [str(step[name]) for name in ("values", "forward", "backward", "update")]
    for rate in rates:
        for count in ranks:
            for way in ways:
                network = f"hosts={count}x1,link={rate}:{LATENCY}"
                said = _output("sim", SCRIPT, "--network", network, "--", way, *sizes)
                seconds = json.loads(said.splitlines()[0])["step"]
                yield {"way": way, "ranks": count, "rate": rate, "step": seconds}


def _output(*words: str) -> str:
    """What `aiodist` prints.

    Raises:
        CrewError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "aiodist", *words],
        cwd=ROOT,
        env=environment(AIODIST),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CrewError(f"aiodist {' '.join(words)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout
