"""What happens when something fails: faults are injected, and what follows is counted and timed.

Each test has a number; docs/failures-table.md lists them. Rows 5 and 7 need root, for network namespaces, and
are left out without. Figures of rows that are not run again are kept in the results file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
import unittest
from collections.abc import Sequence

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.rows import ROWS
from benchmarks.deaths.scale import Scale
from benchmarks.deaths.staged.stage import tell_all
from benchmarks.deaths.table import COMMAND, table
from benchmarks.harness.command import DOCS, keep, kept, parser, put_into
from benchmarks.harness.machine import facts

PAGE = DOCS / "failures-table.md"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser("deaths", __doc__, "failure-results.json")
    made.add_argument("--only", metavar="N,N…", help="rows to run; all that can be")
    made.add_argument("--whole", action="store_true", help="the full counts: about an hour; else minutes")
    made.add_argument("--seed", type=int, default=1, help="of everything random (1)")
    made.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}, too")
    made.add_argument(
        "--problems", nargs="*", metavar="NAME", help="instead: stage problems, and print what the job says"
    )
    options = made.parse_args(argv)
    try:
        wanted = [int(number) for number in options.only.split(",")] if options.only else list(ROWS)
    except ValueError:
        made.error(f"--only {options.only}: write numbers, as in --only 1,5")
    if unknown := [number for number in wanted if number not in ROWS]:
        made.error(f"there is no row {unknown[0]}")
    options.rows = wanted
    return options


def main(argv: Sequence[str]) -> int:
    """Run the rows; 1 if something was not as expected, figures apart."""
    options = parse(argv)
    if options.problems is not None:
        return tell_all(options.problems)
    scale = Scale(whole=options.whole, quick=options.quick, seed=options.seed)
    results = {"rows": {}} | kept(options.out) | {"facts": facts()}
    good = True
    for number in options.rows:
        found = run_row(number, scale)
        if found is None:
            continue
        results["rows"][str(number)] = {
            "whole": scale.whole,
            "figures": [figures.as_json() for figures in found],
        }
        keep(options.out, results)
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
