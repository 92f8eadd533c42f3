"""Train with ranks that are killed at random, and without deaths; compare what comes out.

Each algorithm trains a small network on handwritten digits, on 4 processes under the launcher, for some seeds
without deaths, and for the same seeds with deaths: SIGKILL from outside, at random moments, of random ranks,
sometimes of two at once. Killed workers come back. Linux; needs scikit-learn. Figures of algorithms that are
not run again are kept in the results file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.deaths.algorithms import ALGORITHMS, RANKS
from benchmarks.deaths.compare import Comparison, table
from benchmarks.deaths.figure import draw
from benchmarks.deaths.plan import plan
from benchmarks.deaths.training import Outcome, train
from benchmarks.ending import run_main
from benchmarks.machine import facts
from benchmarks.marks import put_into

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = "python -m benchmarks.deaths --docs"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.deaths", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=5, help="trainings with deaths, and as many without (5)")
    parser.add_argument("--kills", type=int, default=12, help="planned for each training (12)")
    parser.add_argument("--steps", type=int, default=800, help="of each training (800)")
    parser.add_argument("--out", default="death-results.json", metavar="FILE", help="the figures, as JSON")
    parser.add_argument("--figure", metavar="FILE", help="where to draw them, as SVG")
    parser.add_argument(
        "--docs", action="store_true", help="write table and figure into docs/elastic.md, too"
    )
    options = parser.parse_args(argv)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: a standard deviation needs two")
    return options


def compare(
    folder: Path, name: str, seeds: Sequence[int], deadly: Sequence[int], steps: int, kills: int
) -> Comparison:
    """Train by one algorithm.

    Args:
        folder: for files; made.
        name: of the algorithm.
        seeds: of trainings without deaths.
        deadly: those of them that are also done with deaths.
        steps: of each training.
        kills: planned for each training with deaths.
    """

    def one(seed: int, deaths: int) -> Outcome:
        planned = plan(seed, steps, RANKS, deaths) if deaths else ()
        found = train(folder / f"{name}-{seed}-{deaths}", name, seed, steps, planned)
        print(
            f"{name}, seed {seed}: {found.kills} killed, loss {found.held_out:.4f}, {found.seconds:.1f} s",
            file=sys.stderr,
        )
        return found

    return Comparison(name, [one(seed, 0) for seed in seeds], [one(seed, kills) for seed in deadly])


def main(argv: Sequence[str]) -> int:
    """Train all, and write what came out; 1 if a promise was not kept."""
    options = parse(argv)
    seeds, out = range(options.seeds), Path(options.out)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
        for name in options.only:
            one = compare(Path(folder), name, seeds, seeds, options.steps, options.kills)
            found[name] = {"machine": facts(), "steps": options.steps} | one.as_json()
            out.write_text(json.dumps(found, indent=1) + "\n")
    compared = [Comparison.from_json(found[name]) for name in ALGORITHMS if name in found]
    print(table(compared))
    if options.docs:
        put_into(DOCS / "elastic.md", table(compared), COMMAND)
        options.figure = options.figure or DOCS / "figures" / "deaths.svg"
    if options.figure:
        Path(options.figure).write_text(draw(compared))
    return 0 if all(one.kept for one in compared) else 1


if __name__ == "__main__":
    run_main(main)
