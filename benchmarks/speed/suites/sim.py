"""What `aiodist sim` predicts beside what is measured: collectives between namespaces; Linux, as root.

Hosts are network namespaces whose cables a token bucket limits (`aiodist.testing.hosts`); the prediction is
for the same network, whose software shares the cores of this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.base.operations import ROLES
from aiodist.base.types import Kind
from aiodist.cli.bench.measures import show_seconds, show_size
from aiodist.cli.bench.table import table
from aiodist.sim.collectives import Collectives, Wanted
from aiodist.sim.constants import Constants
from aiodist.sim.cost import Fabric
from aiodist.sim.network import LinkSpec, Network
from aiodist.testing.hosts import Hosts
from benchmarks.harness.cases import Case
from benchmarks.harness.crew import Crew, free_port
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.results import Record
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import check, slowest

RATES = {"100 Mbit/s": ("100mbit", 100e6 / 8), "1 Gbit/s": ("1gbit", 1e9 / 8)}
"""Of the cables: as tc writes it, and in bytes a second."""
SIZES = {"100 Mbit/s": (1 << 20, 8 << 20), "1 Gbit/s": (1 << 20, 8 << 20, 32 << 20)}
SHAPES = ((2, 1), (4, 1), (4, 2))  # hosts, ranks of each
WHAT = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
GOAL = 0.2
_BURST = 256 << 10  # bytes; as `Hosts` gives its token buckets
_SAMPLES = 9


def sim(run: Run) -> list[Step]:
    """One step for each network."""
    if run.settings.quick:
        return [Step("sim", "2 hosts", partial(_sim, run, "1 Gbit/s", 2, 1, WHAT[:1], SIZES["1 Gbit/s"][:1]))]
    return [
        Step("sim", f"{hosts} × {each}, {rate}", partial(_sim, run, rate, hosts, each, WHAT, SIZES[rate]))
        for rate in RATES
        for hosts, each in SHAPES
    ]


def _sim(run: Run, rate: str, hosts: int, each: int, wanted: Sequence[str], sizes: Sequence[int]) -> None:
    """All cases of one network: ranks are started once. The first host is the switch alone."""
    name, bandwidth = RATES[rate]
    add = partial(run.results.add, "sim", ranks=hosts * each)
    with (
        Hosts(1 + hosts, name) as made,
        Crew(AIODIST, hosts * each, enter=lambda rank: made.enter(1 + rank // each)) as crew,
    ):
        crew.call("connect", port=free_port(), host=made.address(1))
        for what in wanted:
            for nbytes in sizes:
                case, line = Case(what, nbytes), f"{rate} | {hosts} × {each} | {what}"
                run.progress.show(f"{what} {show_size(nbytes)}")
                add(line, "measured", samples(crew.call, case, 2 * _BURST / bandwidth), nbytes=nbytes)
                add(
                    line, "predicted", [predict(network(rate, hosts, each), Constants(), case)], nbytes=nbytes
                )


def network(rate: str, hosts: int, each: int) -> Network:
    """The network of the namespaces, as a simulation takes it."""
    link = LinkSpec(RATES[rate][1], burst=_BURST)
    host_of = tuple(rank // each for rank in range(hosts * each))
    return Network(host_of, (link,) * hosts, cores=float(len(os.sched_getaffinity(0))))


def predict(found: Network, constants: Constants, case: Case) -> float:
    """Seconds of a collective on idle links, for the rank that ends last."""
    kind = Kind[case.what]
    collectives = Collectives(Fabric(found, constants), range(found.size))
    wanted = Wanted(kind, case.nbytes, case.numpy_dtype.itemsize, 0 if ROLES[kind].rooted else -1)
    return constants.issue + float(collectives.ends(wanted, np.zeros(found.size)).at.max())


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


def errors_table(records: Sequence[Record]) -> str:
    """All lines as Markdown, with how many are right."""
    predicted = {(one.what, one.nbytes): one.value for one in records if one.peer == "predicted"}
    head = [
        "cable",
        "hosts × ranks",
        "operation",
        "size",
        "median",
        "least",
        "predicted",
        "error to the median",
    ]
    rows, right, best = [], 0, 0
    for one in (record for record in records if record.peer == "measured"):
        seconds = predicted[one.what, one.nbytes]
        error = seconds / one.value - 1
        right += abs(error) <= GOAL
        best += abs(seconds / one.least - 1) <= GOAL
        times = (show_seconds(value) for value in (one.value, one.least, seconds))
        rows.append([*one.what.split(" | "), show_size(one.nbytes), *times, f"{100 * error:+.0f} %"])
    said = f"{right} of {len(rows)} lines are within {100 * GOAL:.0f} % of the median, {best} of the least."
    return f"{table(head, rows)}\n\n{said}"
