"""Fuzz every parser that reads the network, and print what became of it: `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz import with_atheris
from tests.fuzz.engine import Outcome, fuzz, read, replay, write
from tests.fuzz.targets import TARGETS

FAILURES = Path("fuzz-failures")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code, 1 if anything crashed."""
    options = _parser().parse_args(argv)
    if options.list:
        for target in TARGETS:
            print(f"{target.name:20} {target.what}")
        return 0
    if options.replay:
        return _replay(options.replay)
    targets = [t for t in TARGETS if options.target is None or t.name in options.target]
    if options.target is not None and len(targets) != len(set(options.target)):
        print(f"there are: {', '.join(t.name for t in TARGETS)}", file=sys.stderr)
        return 2
    engine = {"hypothesis": fuzz, "atheris": with_atheris.fuzz}[options.engine]
    whole = sum(target.share for target in targets)
    print(_HEAD)
    outcomes = []
    for target in targets:
        count = max(1, round(options.inputs * target.share / whole))
        outcome = engine(target, count, options.seed, say=_progress if sys.stderr.isatty() else None)
        outcomes.append(outcome)
        print(row(outcome), flush=True)
        for crash in outcome.crashes.values():
            path = write(crash, target.name, options.seed, options.failures)
            print(f"    {crash.where}: {crash.error!r}\n    → {path}")
    print(_total(outcomes))
    return 1 if any(outcome.crashes for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1, help="the same gives the same inputs")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--failures", type=Path, default=FAILURES, help="where failing inputs are written")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one failing input again")
    parser.add_argument("--list", action="store_true", help="name the targets")
    return parser


_COLUMNS = ("inputs", 9), ("inputs/s", 8), ("accepted", 9), ("peak KiB", 8), ("slowest", 8), ("crashes", 7)
_HEAD = " ".join(["target".ljust(17), *(name.rjust(width) for name, width in _COLUMNS), " refused"])


def row(outcome: Outcome) -> str:
    """One line of the table."""
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0.0
    refused = ", ".join(f"{name} {count}" for name, count in outcome.refused.most_common())
    return (
        f"{outcome.name:17} {outcome.inputs:9} {rate:8.0f} {outcome.accepted:9} {outcome.peak >> 10:8}"
        f" {outcome.slowest * 1e3:5.0f} ms {len(outcome.crashes):7}  {refused}"
    )


def _total(outcomes: list[Outcome]) -> str:
    total = Outcome("all")
    for outcome in outcomes:
        total.inputs += outcome.inputs
        total.seconds += outcome.seconds
        total.accepted += outcome.accepted
        total.refused += outcome.refused
        total.peak = max(total.peak, outcome.peak)
        total.slowest = max(total.slowest, outcome.slowest)
        total.crashes |= outcome.crashes
    return row(total)


def _progress(outcome: Outcome) -> None:
    print(f"\r{outcome.name}: {outcome.inputs}", end="\r", file=sys.stderr, flush=True)


def _replay(path: Path) -> int:
    name, data = read(path)
    outcome = replay(next(target for target in TARGETS if target.name == name), data)
    print(_HEAD)
    print(row(outcome))
    return 1 if outcome.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
