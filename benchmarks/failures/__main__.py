"""Inject faults, count what happens, and make the table of figures.

Each test has a number; docs/failures-table.md lists them. Linux; rows 5 and 7 need root, for network
namespaces, and are left out without. Figures of rows that are not run again are kept in the results file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import traceback
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ending import run_main
from benchmarks.failures.figures import Figures
from benchmarks.failures.rows import ROWS
from benchmarks.failures.scale import Scale
from benchmarks.failures.table import COMMAND, table
from benchmarks.machine import facts
from benchmarks.marks import put_into

PAGE = Path(__file__).parents[2] / "docs" / "failures-table.md"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.failures", description=__doc__)
    parser.add_argument("--only", metavar="N,N…", help="rows to run; all that can be")
    parser.add_argument("--whole", action="store_true", help="the full counts: about an hour; else minutes")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (1)")
    parser.add_argument(
        "--out", default="failure-results.json", metavar="FILE", help="where the figures are kept, as JSON"
    )
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}, too")
    parser.add_argument("--tiny", action="store_true", help="once each: whether it all works")
    options = parser.parse_args(argv)
    try:
        wanted = [int(number) for number in options.only.split(",")] if options.only else list(ROWS)
    except ValueError:
        parser.error(f"--only {options.only}: write numbers, as in --only 1,5")
    if unknown := [number for number in wanted if number not in ROWS]:
        parser.error(f"there is no row {unknown[0]}")
    options.rows = wanted
    return options


def main(argv: Sequence[str]) -> int:
    """Run the rows; 1 if something was not as expected, figures apart."""
    options = parse(argv)
    if not sys.platform.startswith("linux"):
        print("benchmarks.failures: they need Linux (pidfd, namespaces)", file=sys.stderr)
        return 2
    scale = Scale(whole=options.whole, tiny=options.tiny, seed=options.seed)
    out = Path(options.out)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"rows": {}}
    results["facts"] = facts()
    good = True
    for number in options.rows:
        found = run_row(number, scale)
        if found is None:
            continue
        results["rows"][str(number)] = {
            "whole": scale.whole,
            "figures": [figures.as_json() for figures in found],
        }
        out.write_text(json.dumps(results, indent=1) + "\n")
        for figures in found:
            good = good and (figures.good or not figures.repeats)
            for problem in figures.problems[:5]:
                print(f"row {number}, {figures.what}, {figures.ranks} ranks: {problem}", file=sys.stderr)
    text = table(results)
    print(text)
    if options.docs:
        put_into(PAGE, text, COMMAND)
    return 0 if good else 1


def run_row(number: int, scale: Scale) -> list[Figures] | None:
    """Run one row; None where nothing can run it."""
    row = ROWS[number]
    if row.run is None:
        return None
    try:
        return asyncio.run(row.run(scale))
    except unittest.SkipTest as reason:
        return [Figures(number, "", "", notes=[f"not run: {reason}"])]
    except Exception as error:  # the other rows shall be run all the same
        words = "".join(traceback.format_exception(error))
        return [Figures(number, "came to nothing", "", repeats=1, problems=[words])]


if __name__ == "__main__":
    run_main(main)
