"""Train a small language model over slow cables, by each algorithm, and draw its loss. Linux, as root.

Hosts are network namespaces; a token bucket limits the cables. Then `aiodist sim` says how long a step takes
on many ranks. Results of parts that are not run again are kept in the file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import unittest
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aiodist.base.environment.processor_load import family, look, meanwhile
from aiodist.testing.hosts import Hosts
from benchmarks.ending import run_main
from benchmarks.language import curves, predict, tables, text
from benchmarks.language.job import ROOT, JobError, run
from benchmarks.language.ways import WAYS
from benchmarks.machine import facts
from benchmarks.marks import put_into
from benchmarks.progress import Progress

PAGE, FIGURE = ROOT / "docs" / "slow-networks-measured.md", ROOT / "docs" / "figures" / "language.svg"
COMMAND = "python -m benchmarks.language --docs"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.language", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(WAYS), metavar="NAME", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--seconds", type=float, default=180, help="that each algorithm trains (180)")
    parser.add_argument("--ranks", type=int, default=4, help="each on a host of its own (4)")
    parser.add_argument("--link", default="100mbit", help="rate of the cables, as tc writes it (100mbit)")
    parser.add_argument("--shape", choices=["small", "tiny"], default="small", help="of the model (small)")
    parser.add_argument("--rate", type=float, help="of learning, in the place of each algorithm's own")
    parser.add_argument("--train", action="store_true", help="only train")
    parser.add_argument("--sim", action="store_true", help="only simulate")
    parser.add_argument("--again", action="store_true", help="only show what the file of results has")
    parser.add_argument("--sim-ranks", type=int, nargs="+", default=[64, 1024], metavar="N")
    parser.add_argument("--sim-rates", nargs="+", default=["100Mbit/s", "1Gbit/s"], metavar="RATE")
    parser.add_argument("--out", type=Path, default=Path("language-results.json"), help="the file of results")
    parser.add_argument("--docs", action="store_true", help=f"write {PAGE.name} and {FIGURE.name}, too")
    options = parser.parse_args(argv)
    options.only = options.only or list(WAYS)
    if find_spec("torch") is None and not options.again:
        parser.error("it needs torch: pip install torch")
    return options


def main(argv: Sequence[str]) -> int:
    """Train, simulate, print the tables, and write what was found; 1 where something failed."""
    options = parse(argv)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    every = not (options.train or options.sim or options.again)
    progress = Progress(len(options.only) * (options.train or every) + (options.sim or every))
    try:
        if options.train or every:
            train(options, results, progress)
        if options.sim or every:
            simulate(options, results, progress)
    except (unittest.SkipTest, JobError) as reason:
        progress.end()
        print(f"benchmarks.language: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.end()
        print("benchmarks.language: interrupted", file=sys.stderr)
        return 130
    finally:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    progress.end()
    said = tables.page(results)
    print(said)
    if options.docs:
        put_into(PAGE, said, COMMAND)
        if results.get("runs"):
            FIGURE.write_text(curves.draw(results["runs"]))
    return 0


def train(options: argparse.Namespace, results: dict[str, Any], progress: Progress) -> None:
    """Run the algorithms one after another, for the same time each."""
    whole = text.corpus()
    settings = {name: getattr(options, name) for name in ("seconds", "ranks", "link", "shape")}
    settings |= {"text": whole.digest, "train": int(whole.train.size), "held_out": int(whole.held_out.size)}
    if results.get("settings") != settings:
        results["runs"] = {}
    results["settings"], results["machine"] = settings, facts()
    with Hosts(1 + options.ranks, options.link) as hosts:
        for name in options.only:
            progress.step("train", WAYS[name].label)
            words = [name, "--seconds", str(options.seconds), "--shape", options.shape]
            words += ["--rate", str(options.rate)] if options.rate else []

            def seen(row: dict[str, Any]) -> None:
                progress.show(_line(row))

            before = look()
            found = run(hosts, options.ranks, words, options.seconds, seen)
            after = look()
            own = family(before, after, os.getpid()) if before and after else {}
            taken = meanwhile(before, after, own)
            results["runs"][name] = {
                **found,
                "rate": options.rate or WAYS[name].rate,
                "way": asdict(WAYS[name]),
                "others": taken.others if taken else 0.0,
                "stolen": taken.stolen if taken else 0.0,
            }
            results["runs"] = {way: results["runs"][way] for way in WAYS if way in results["runs"]}
            progress.say(f"{WAYS[name].label}: {_line(found['curve'][-1])}")


def simulate(options: argparse.Namespace, results: dict[str, Any], progress: Progress) -> None:
    """Have `aiodist sim` say how long steps take."""
    progress.step("sim", "a step alone")
    results.setdefault("machine", facts())
    results["alone"], results["sim"] = predict.alone(options.shape), []
    for line in predict.predictions(options.only, options.sim_ranks, options.sim_rates, results["alone"]):
        results["sim"].append(line)
        progress.show(f"{line['rate']}, {line['ranks']} ranks, {line['way']}: {line['step']:.3g} s")


def _line(row: dict[str, Any]) -> str:
    sent = tables.show_bytes(row["sent"])
    return f"{row['seconds']:.0f} s, step {row['step']}, a rank sent {sent}, loss {row['loss']:.3f}"


if __name__ == "__main__":
    run_main(main)
