"""Two states of aiodist beside each other: `python -m benchmarks.pairs OLD`, where OLD is another checkout.

In each pair both start their ranks anew, and take turns at every line; what counts is the ratio of their
medians. Over all pairs the median of the ratios is told, with the interval in which it lies with 95 %
confidence (order statistics, no assumption about the distribution). A line is slower where the whole interval
is above 1.05.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aiodist.cli.bench.measures import show_size
from benchmarks.harness.cases import SWEPT, Case
from benchmarks.harness.command import ROOT, run_main
from benchmarks.harness.machine import facts
from benchmarks.harness.peers import AIODIST_CALLS, Found, Peer, environment
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run, Settings
from benchmarks.harness.turns import measure
from benchmarks.speed.report import processor

SLOWER = 1.05
_EMPTY = "aiodist-empty"


@dataclass(frozen=True, order=True)
class Line:
    """One line of the table: an operation of some size; `shared`: its tensors come from `pg.empty`."""

    what: str
    nbytes: int = 0
    shared: bool = False

    def __str__(self) -> str:
        size = f" {show_size(self.nbytes)}" if self.nbytes else ""
        return f"{self.what}{size}{', pg.empty' if self.shared else ''}"


LINES = (
    *(Line(what, nbytes) for what in SWEPT if what != "barrier" for nbytes in (8, 64 << 10, 1 << 20)),
    *(Line(what, 16 << 20) for what in ("all_reduce", "broadcast", "all_gather", "p2p")),
    *(Line("all_reduce", nbytes, shared=True) for nbytes in (8, 1 << 20, 16 << 20)),
    *(Line("barrier"), Line("five", 1 << 10), Line("inflight", 1 << 10)),
)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The bounds between which the median of what these were drawn from lies, with 95 % confidence.

    They are two of the values, as far from both ends as the binomial distribution allows; with fewer than six
    values the first and the last.
    """
    ordered = sorted(ratios)
    count, outside, cut = len(ordered), 0.0, 0
    while cut < count // 2:
        outside += math.comb(count, cut) / 2**count
        if 2 * outside > 0.05:
            break
        cut += 1
    cut = max(0, cut - 1)
    return ordered[cut], ordered[count - 1 - cut]


@contextmanager
def peers(old: Path) -> Iterator[tuple[Peer, Peer]]:
    """The old state and this one; both are measured by the benchmarks of this one."""
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        (Path(folder) / "aiodist").symlink_to(old.resolve() / "aiodist")
        new = {"PYTHONSAFEPATH": "1"}  # or the working directory would come before all
        old_one = Peer("old", "aiodist", AIODIST_CALLS, env=new | {"PYTHONPATH": f"{folder}:{ROOT}"})
        both = old_one, Peer("new", "aiodist", AIODIST_CALLS, env=new)
        for peer, root in zip(both, (Path(folder), ROOT), strict=True):
            if library(peer) != root / "aiodist":
                raise RuntimeError(f"{peer.name} would measure {library(peer)}, and not {root / 'aiodist'}")
        yield both


def library(peer: Peer) -> Path:
    """The folder from which a peer's processes load aiodist."""
    where = "import aiodist; print(aiodist.__file__)"
    found = subprocess.check_output([sys.executable, "-c", where], env=environment(peer), text=True)
    return Path(found.strip()).parent


def one_pair(
    both: Sequence[Peer], lines: Sequence[Line], size: int, settings: Settings
) -> dict[Line, tuple[float, float]]:
    """The seconds that each line takes: in the old state, and in the new one."""
    found = {}
    results = Results()
    run = Run(Found({}, []), settings, results)
    try:
        for line in lines:
            suite = _EMPTY if line.shared else "plain"
            case = Case(line.what, line.nbytes)
            turns = [replace(peer, shared=line.shared) for peer in both]
            measure(run, suite, case, size, turns)
            times = {
                one.peer: one.value
                for one in results.select(suite=suite, what=line.what, nbytes=line.nbytes, ranks=size)
            }
            if times.keys() >= {"old", "new"}:
                found[line] = times["old"], times["new"]
    finally:
        run.close_crews()
    for note in results.notes:
        print(note, file=sys.stderr)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table; 1 where a line is slower."""
    parser = argparse.ArgumentParser("python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("old", type=Path, help="the checkout of the other state")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="operations; else all")
    args = parser.parse_args(argv)
    if not (args.old / "aiodist" / "__init__.py").is_file():
        parser.error(f"there is no aiodist in {args.old}")
    lines = [line for line in LINES if line.what in (args.only or [line.what])]
    lines = [line for line in lines if args.ranks == 2 or line.what != "p2p"]
    settings = Settings(turns=3, budget=0.03)
    taken: dict[Line, list[tuple[float, float]]] = {line: [] for line in lines}
    with peers(args.old) as (old, new):
        for pair in range(args.pairs):
            order = (old, new) if pair % 2 else (new, old)
            for line, times in one_pair(order, lines, args.ranks, settings).items():
                taken[line].append(times)
            print(f"pair {pair + 1} of {args.pairs}", file=sys.stderr)
    found = facts()
    print(f"{processor(found)}, {args.ranks} ranks, {args.pairs} pairs; new / old\n")
    print("| line | old | new - old | new / old | 95 % | slower |\n|---|---|---|---|---|---|")
    slower = 0
    for line, pairs in taken.items():
        if pairs:
            ratios = [new / old for old, new in pairs]
            low, high = interval(ratios)
            slower += low > SLOWER
            figures = (
                f"{1e6 * statistics.median(old for old, _ in pairs):.2f} µs",
                f"{1e6 * statistics.median(new - old for old, new in pairs):+.2f} µs",
                f"{statistics.median(ratios):.2f}",
                f"{low:.2f} to {high:.2f}",
                "yes" if low > SLOWER else "no",
            )
            print(f"| {line} | {' | '.join(figures)} |")
    return 1 if slower else 0


if __name__ == "__main__":
    run_main(main)
