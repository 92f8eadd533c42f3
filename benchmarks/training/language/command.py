"""Train a small language model over slow cables, by each algorithm, and draw its loss. Linux, as root.

Hosts are network namespaces; a token bucket limits the cables. Then `aiodist sim` says how long a step takes
on many ranks. Results of parts that are not run again are kept in the file of results.
"""

from __future__ import annotations

import argparse
import os
import sys
import unittest
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from aiodist.base.environment.processor_load import family, meanwhile, sample
from aiodist.testing.hosts import Hosts
from benchmarks.harness.command import DOCS, keep, kept, parser, put_into
from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.machine import facts
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.progress import Progress
from benchmarks.training.language import curves, predict, tables, text
from benchmarks.training.language.ways import WAYS

PAGE, FIGURE = DOCS / "slow-networks-measured.md", DOCS / "figures" / "language.svg"
COMMAND = "python -m benchmarks training language --docs"
USUAL = {"seconds": 180.0, "ranks": 4, "shape": "small", "sim_ranks": (64, 1024)}
QUICK = {"seconds": 2.0, "ranks": 2, "shape": "tiny", "sim_ranks": (3,)}
POINTS = 16  # of a curve
SIM_RATES = ("100Mbit/s", "1Gbit/s")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser("training language", __doc__, "language-results.json")
    made.add_argument("--only", nargs="+", choices=list(WAYS), metavar="NAME", help=f"of {', '.join(WAYS)}")
    made.add_argument("--seconds", type=float, help="that each algorithm trains (180; quick: 2)")
    made.add_argument("--ranks", type=int, help="each on a host of its own (4; quick: 2)")
    made.add_argument("--link", default="100mbit", help="rate of the cables, as tc writes it (100mbit)")
    made.add_argument("--train", action="store_true", help="only train")
    made.add_argument("--sim", action="store_true", help="only simulate")
    made.add_argument("--docs", action="store_true", help=f"write {PAGE.name} and {FIGURE.name}, too")
    options = made.parse_args(argv)
    for name, usual in (QUICK if options.quick else USUAL).items():
        setattr(options, name, getattr(options, name, None) or usual)
    options.only = options.only or list(WAYS)
    if find_spec("torch") is None:
        made.error("it needs torch: pip install torch")
    return options


def main(argv: Sequence[str]) -> int:
    """Train, simulate, print the tables, and write what was found; 1 where something failed."""
    options = parse(argv)
    results = kept(options.out)
    progress = Progress(len(options.only) + 1)
    try:
        if options.train or not options.sim:
            train(options, results, progress)
        if options.sim or not options.train:
            simulate(options, results, progress)
    except (unittest.SkipTest, CrewError) as reason:
        print(f"benchmarks: {reason}", file=sys.stderr)
        return 1
    finally:
        progress.end()
        keep(options.out, results)
    said = tables.page(results)
    print(said)
    if options.docs:
        put_into(PAGE, said, COMMAND)
        if results.get("runs"):
            FIGURE.write_text(curves.draw(results["runs"]))
    return 0


def train(options: argparse.Namespace, results: dict[str, Any], progress: Progress) -> None:
    """Run the algorithms one after another, for the same time each."""
    from benchmarks.training.language import rank  # needs torch

    whole = text.corpus()
    settings = {name: getattr(options, name) for name in ("seconds", "ranks", "link", "shape")}
    settings |= {"text": whole.digest, "train": int(whole.train.size), "held_out": int(whole.held_out.size)}
    if results.get("settings") != settings:
        results["runs"] = {}
    results["settings"], results["machine"] = settings, facts()
    with Hosts(1 + options.ranks, options.link) as hosts:
        for name in options.only:
            progress.step("train", WAYS[name].label)
            before = sample()
            with Crew(AIODIST, options.ranks, enter=lambda rank: hosts.enter(1 + rank)) as crew:
                crew.call("connect", port=free_port(), host=hosts.address(1))
                crew.do(rank.begin, name=name, shape=options.shape)
                for point in range(1, POINTS + 1):
                    seen = crew.do(rank.train, seconds=options.seconds * point / POINTS)
                    progress.show(_line(seen[0]))
                found = crew.do(rank.curve)[0]
            after = sample()
            own = family(before, after, os.getpid()) if before and after else {}
            taken = meanwhile(before, after, own)
            results["runs"][name] = {
                **found,
                "rate": WAYS[name].rate,
                "way": asdict(WAYS[name]),
                "others": taken.others if taken else 0.0,
                "stolen": taken.stolen if taken else 0.0,
            }
            results["runs"] = {way: results["runs"][way] for way in WAYS if way in results["runs"]}
            progress.say(f"{WAYS[name].label}: {_line(found['curve'][-1])}")


def simulate(options: argparse.Namespace, results: dict[str, Any], progress: Progress) -> None:
    """Have `aiodist sim` say how long steps take."""
    from benchmarks.training.language import rank

    progress.step("sim", "a step alone")
    results.setdefault("machine", facts())
    with Crew(AIODIST, 1) as crew:
        results["alone"], results["sim"] = crew.do(rank.alone, shape=options.shape)[0], []
    for line in predict.predictions(options.only, options.sim_ranks, SIM_RATES, results["alone"]):
        results["sim"].append(line)
        progress.show(f"{line['rate']}, {line['ranks']} ranks, {line['way']}: {line['step']:.3g} s")


def _line(row: dict[str, Any]) -> str:
    sent = tables.show_bytes(row["sent"])
    return f"{row['seconds']:.0f} s, step {row['step']}, a rank sent {sent}, loss {row['loss']:.3f}"
