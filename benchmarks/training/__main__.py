"""Measure steps of data-parallel training in torch, and print the table.

Needs torch. In one job, in turn: torch's DistributedDataParallel over gloo and over aiodist, aiodist's own
for async loops, and torch's with nothing sent, which is the least that a step can take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.ending import run_main
from benchmarks.machine import facts

_CALLS = ["-m", "benchmarks.training.calls", "4;1024;65536"]
_PEERS = {
    "gloo": "torch's over gloo",
    "aiodist": "torch's over aiodist",
    "awaited": "`dist.DistributedDataParallel`",
    "nothing": "nothing sent",
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    from benchmarks.training.ranks import SHAPES

    parser = argparse.ArgumentParser("python -m benchmarks.training", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="sizes")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each size, about")
    parser.add_argument("--view", action="store_true", help="with gradient_as_bucket_view=True")
    parser.add_argument("--calls", action="store_true", help="small blocking calls instead of steps")
    parser.add_argument("--out", metavar="FILE", help="the figures and the machine, as JSON")
    return parser.parse_args(argv)


def figures(ranks: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds of a step, on the slowest rank, by size and peer."""
    view = "view" if options.view else "copies"
    job = ["-m", "benchmarks.training.ranks", ";".join(options.only), str(options.seconds), view]
    return run(ranks, job)


def run(ranks: int, job: Sequence[str]) -> dict[str, dict[str, float]]:
    """What the ranks of a job have measured."""
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(ranks), *job]
    found: dict[str, dict[str, float]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            _, marked, rest = line.partition("figures ")
            if marked:
                found |= json.loads(rest)
                print(f"{ranks} ranks, {next(iter(json.loads(rest)))}", file=sys.stderr)
    if running.returncode:
        raise SystemExit(running.returncode)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """The figures of one number of ranks, as Markdown."""
    lines = [
        f"| gradients | {' | '.join(_PEERS.values())} | gloo / aiodist | gloo / ours |",
        "|---|" + "---|" * (len(_PEERS) + 2),
    ]
    for size, times in found.items():
        cells = [f"{times[peer] * 1e3:.2f} ms" for peer in _PEERS]
        ratios = [f"{times['gloo'] / times[peer]:.2f}" for peer in ("aiodist", "awaited")]
        lines.append(f"| {size} | {' | '.join(cells + ratios)} |")
    return "\n".join(lines)


def calls_table(found: dict[str, dict[str, float]]) -> str:
    """Microseconds of small calls, as Markdown."""
    names = list(next(iter(found.values())))
    lines = [f"| all_reduce of | {' | '.join(names)} | (torch - awaited) / hand-over |"]
    lines.append("|---|" + "---|" * (len(names) + 1))
    for size, times in found.items():
        ratio = (times["torch over aiodist"] - times["awaited"]) / times["hand-over"]
        cells = " | ".join(f"{times[name] * 1e6:.0f} µs" for name in names)
        lines.append(f"| {size} | {cells} | {ratio:.2f} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv)
    if options.calls:
        for ranks in options.ranks:
            print(f"\n{ranks} ranks:\n\n{calls_table(run(ranks, _CALLS))}", flush=True)
        return 0
    results: dict[str, Any] = {"facts": facts(), "view": options.view, "ranks": {}}
    for ranks in options.ranks:
        results["ranks"][ranks] = found = figures(ranks, options)
        print(f"\n{ranks} ranks:\n\n{table(found)}", flush=True)
    if options.out:
        with open(options.out, "w") as out:
            json.dump(results, out, indent=1)
    return 0


if __name__ == "__main__":
    run_main(main)
