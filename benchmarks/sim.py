"""What `aiodist sim` predicts beside what is measured: collectives between namespaces; Linux, as root.

    python -m benchmarks.sim [--rates 100mbit 1gbit] [--only all_reduce …] [--constants FILE] [--json FILE]

Hosts are network namespaces whose cables a token bucket limits (`aiodist.testing.hosts`); the prediction is
for the same network, whose software shares the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aiodist.base.operations import ROLES
from aiodist.base.types import Kind
from aiodist.cli.bench.cases import Case
from aiodist.cli.bench.measures import show_seconds, show_size
from aiodist.cli.bench.table import table
from aiodist.sim.collectives import Collectives, Wanted
from aiodist.sim.constants import Constants, load
from aiodist.sim.cost import Fabric
from aiodist.sim.network import Link, Network
from aiodist.testing.hosts import Hosts
from benchmarks.crew import Crew, free_port
from benchmarks.ending import run_main
from benchmarks.machine import facts
from benchmarks.peers import AIODIST
from benchmarks.turns import check, slowest

RATES = {"100mbit": 100e6 / 8, "1gbit": 1e9 / 8}  # bytes a second
SIZES = {"100mbit": (1 << 20, 8 << 20), "1gbit": (1 << 20, 8 << 20, 32 << 20)}
SHAPES = ((2, 1), (4, 1), (4, 2))  # hosts, ranks of each
WHAT = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
GOAL = 0.2
_BURST = 256 << 10  # bytes; as `Hosts` gives its token buckets
_SAMPLES = 9


@dataclass(frozen=True)
class Line:
    """One collective: seconds measured (median; least, as others disturbed it least), and predicted."""

    rate: str
    hosts: int
    each: int
    what: str
    nbytes: int
    measured: float
    least: float
    predicted: float
    how: str

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1


def main(argv: Sequence[str]) -> int:
    """Measure, predict, and print a table; 1 if this machine has no namespaces."""
    parser = argparse.ArgumentParser("python -m benchmarks.sim", description=__doc__)
    parser.add_argument("--rates", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT), metavar="NAME")
    parser.add_argument("--constants", metavar="FILE", help="as `aiodist sim --constants` takes it")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--again", metavar="FILE", help="predict anew for what an earlier --json measured")
    options = parser.parse_args(argv)
    constants = load(options.constants) if options.constants else Constants()
    machine = facts()
    lines: list[Line] = []
    if options.again:
        earlier = json.loads(Path(options.again).read_text())
        machine = earlier["machine"]
        for data in earlier["lines"]:
            case = Case(data["what"], data["nbytes"])
            seconds, how = predict(network(data["rate"], data["hosts"], data["each"]), constants, case)
            lines.append(Line(**{**data, "predicted": seconds, "how": how}))
    else:
        try:
            for rate in options.rates:
                for hosts, each in SHAPES:
                    for line in measure(rate, hosts, each, options.only, constants):
                        lines.append(line)
                        print(f"{' | '.join(row(line))}", file=sys.stderr)
            machine["load_after"] = os.getloadavg()[0]
        except unittest.SkipTest as reason:
            print(f"benchmarks.sim: {reason}", file=sys.stderr)
            return 1
    print(report(lines, machine))
    if options.json:
        found = {"machine": machine, "lines": [asdict(line) for line in lines]}
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def network(rate: str, hosts: int, each: int) -> Network:
    """The network of the namespaces, as a simulation takes it."""
    link = Link(RATES[rate], burst=_BURST)
    host_of = tuple(rank // each for rank in range(hosts * each))
    return Network(host_of, (link,) * hosts, cores=float(len(os.sched_getaffinity(0))))


def predict(found: Network, constants: Constants, case: Case) -> tuple[float, str]:
    """Seconds of a collective on idle links, for the rank that ends last, and how it is carried out."""
    kind = Kind[case.what]
    collectives = Collectives(Fabric(found, constants), range(found.size))
    wanted = Wanted(kind, case.nbytes, case.numpy_dtype.itemsize, 0 if ROLES[kind].rooted else -1)
    ends = collectives.ends(wanted, np.zeros(found.size))
    return constants.issue + float(ends.at.max()), collectives.by(wanted)


def measure(rate: str, hosts: int, each: int, wanted: Sequence[str], constants: Constants) -> Iterator[Line]:
    """The lines of one shape: ranks are started once."""
    with Hosts(1 + hosts, rate) as made:  # the first one is the switch alone

        def enter(rank: int) -> list[str]:
            return made.enter(1 + rank // each)

        with Crew(AIODIST, hosts * each, enter=enter) as crew:
            crew.call("connect", port=free_port(), host=made.address(1))
            for what in wanted:
                for nbytes in SIZES[rate]:
                    case = Case(what, nbytes)
                    seconds = samples(crew.call, case, 2 * _BURST / RATES[rate])
                    predicted, how = predict(network(rate, hosts, each), constants, case)
                    median, least = statistics.median(seconds), min(seconds)
                    yield Line(rate, hosts, each, what, nbytes, median, least, predicted, how)


def samples(call: Callable[..., list[Any]], case: Case, idle: float) -> list[float]:
    """Seconds of a case for the rank that ends last; every one begins after a barrier, and after so many
    seconds in which nothing is sent, so that the token buckets are full, as the prediction has them."""
    check(call, case)
    turns = []
    for _ in range(_SAMPLES):
        time.sleep(idle)
        turns.append(call("turn", samples=1, inner=1))
    call("drop")
    return slowest(turns)


def row(line: Line) -> list[str]:
    """A line of the table."""
    return [
        *(line.rate, f"{line.hosts} × {line.each}", line.what, show_size(line.nbytes), line.how),
        *(
            show_seconds(line.measured),
            show_seconds(line.least),
            show_seconds(line.predicted),
            f"{100 * line.error:+.0f} %",
        ),
    ]


def report(lines: Sequence[Line], machine: dict[str, object]) -> str:
    """All lines as Markdown, with how many are right."""
    head = ["rate", "hosts × ranks", "operation", "size", "goes by", "median", "least", "predicted", "error"]
    right = sum(abs(line.error) <= GOAL for line in lines)
    best = sum(abs(line.predicted / line.least - 1) <= GOAL for line in lines)
    said = f"{right} of {len(lines)} lines are within {100 * GOAL:.0f} % of the median, {best} of the least"
    load = f"load {machine['load_before']:.1f} to {machine['load_after']:.1f}"
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}, {load}"
    return f"{table(head, [row(line) for line in lines])}\n\n{said} ({where})"


if __name__ == "__main__":
    run_main(main)
