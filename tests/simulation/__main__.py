"""Runs of a job whose processes die, part, and come: `python -m tests.simulation --seeds 10000`."""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.plan import plan
from tests.simulation.run import Outcome, simulate

EVERY = 20.0  # seconds between lines about progress


class Summary:
    """Of many runs."""

    def __init__(self) -> None:
        self.runs = self.epochs = self.sums = self.agreements = 0
        self.faults: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.failed: list[int] = []
        self._began = time.monotonic()

    def add(self, row: Row) -> None:
        """One run."""
        self.runs += 1
        self.faults.update(row.faults)
        self.epochs += row.epochs
        self.sums += row.sums
        self.agreements += row.agreements
        self.ends.update(row.ends)
        if row.violations:
            self.failed.append(row.seed)
            print(f"seed {row.seed}: {row.violations[0]}", flush=True)

    def line(self) -> str:
        """How far it is."""
        seconds = time.monotonic() - self._began
        return (
            f"{self.runs} runs, {len(self.failed)} failed, {self.epochs} epochs,"
            f" {self.runs / max(seconds, 1e-9):.1f} runs/s"
        )

    def report(self) -> str:
        """All of it."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        ends = ", ".join(f"{kind} {count}" for kind, count in self.ends.most_common())
        return (
            f"{self.line()}\n"
            f"faults: {sum(self.faults.values())} ({kinds})\n"
            f"checked: {self.sums} sums, {self.agreements} agreements\n"
            f"processes ended: {ends}\n"
            f"violations in {len(self.failed)} runs{': seeds ' if self.failed else ''}"
            f"{' '.join(map(str, self.failed[:50]))}"
        )


class Row:
    """What is kept of a run."""

    def __init__(self, outcome: Outcome) -> None:
        ledger = outcome.ledger
        self.seed = outcome.plan.seed
        self.faults = Counter(outcome.faults)
        self.faults["newcomer"] += sum(fault.kind.startswith("join") for fault in outcome.plan.faults)
        self.epochs = len(ledger.epochs)
        self.sums = ledger.sums
        self.agreements = len(ledger.agreements)
        self.ends = Counter(words.partition(":")[0] for words in ledger.ends.values())
        self.violations = ledger.violations


def one(seed: int) -> Row:
    """Run a seed."""
    return Row(simulate(plan(seed)))


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code, 1 if anything was violated."""
    options = _parser().parse_args(argv)
    if options.seed is not None:
        return _replay(options.seed, options.verbose)
    summary, said = Summary(), time.monotonic()
    for row in _rows(range(options.first, options.first + options.seeds), options.jobs):
        summary.add(row)
        if time.monotonic() - said > EVERY:
            said = time.monotonic()
            print(summary.line(), flush=True)
    print(summary.report())
    return 1 if summary.failed else 0


def _rows(seeds: range, jobs: int) -> Iterator[Row]:
    if jobs == 1:
        yield from map(one, seeds)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=16)


def _replay(seed: int, verbose: bool) -> int:
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    outcome = simulate(plan(seed))
    ledger = outcome.ledger
    if verbose:
        print(outcome.plan)
        print("\n".join(ledger.lines))
    print(f"seed {seed}: {len(ledger.violations)} violations, digest {ledger.digest()}")
    for words in ledger.violations:
        print(f"  {words}")
    return 1 if ledger.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--verbose", action="store_true", help="with --seed: say what happens")
    return parser


if __name__ == "__main__":
    sys.exit(main())
