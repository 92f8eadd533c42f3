"""Train with ranks that are killed at random, and without deaths; compare what comes out.

Each algorithm trains a small network on handwritten digits, on 4 processes under the launcher, for some seeds
without deaths, and for the same seeds with deaths: SIGKILL from outside, at random moments, of random ranks,
sometimes of two at once. Killed workers come back. It needs scikit-learn. Figures of algorithms that are not
run again are kept in the results file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.command import DOCS, keep, kept, parser, put_into
from benchmarks.harness.machine import facts
from benchmarks.training.digits.algorithms import ALGORITHMS, RANKS
from benchmarks.training.digits.compare import Comparison, table
from benchmarks.training.digits.figure import draw
from benchmarks.training.digits.plan import plan
from benchmarks.training.digits.training import Outcome, train

PAGE, FIGURE = DOCS / "elastic.md", DOCS / "figures" / "deaths.svg"
COMMAND = "python -m benchmarks training digits --docs"
USUAL = {"seeds": 5, "kills": 12, "steps": 800}
QUICK = {"seeds": 2, "kills": 2, "steps": 200}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser("training digits", __doc__, "death-results.json")
    made.add_argument("--only", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    made.add_argument("--seeds", type=int, help="trainings with deaths, and as many without (5; quick: 2)")
    made.add_argument("--kills", type=int, help="planned for each training (12; quick: 2)")
    made.add_argument("--steps", type=int, help="of each training (800; quick: 200)")
    made.add_argument("--docs", action="store_true", help="write table and figure into docs/elastic.md, too")
    options = made.parse_args(argv)
    for name, usual in (QUICK if options.quick else USUAL).items():
        setattr(options, name, getattr(options, name) or usual)
    if options.seeds < 2:
        made.error(f"--seeds {options.seeds}: a standard deviation needs two")
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
    seeds, found = range(options.seeds), kept(options.out)
    with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
        for name in options.only:
            one = compare(Path(folder), name, seeds, seeds, options.steps, options.kills)
            found[name] = {"machine": facts(), "steps": options.steps} | one.as_json()
            keep(options.out, found)
    compared = [Comparison.from_json(found[name]) for name in ALGORITHMS if name in found]
    print(table(compared))
    if options.docs:
        put_into(PAGE, table(compared), COMMAND)
        FIGURE.write_text(draw(compared))
    return 0 if all(one.kept for one in compared) else 1
