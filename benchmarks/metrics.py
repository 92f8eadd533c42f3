"""What the metrics of a large job cost: `python -m benchmarks.metrics [--ranks 1000]`.

The job is made up: ranks by eight on hosts, each with ten sorts of operations in two groups, the last 64
operations, and connections with eight others. Nobody runs. Processor time of one core, the median of looks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from aiodist.observe.metrics import Tally, exposition
from aiodist.observe.recorder.reading import Group, Link, Record, Recording, Sum, Vitals
from aiodist.observe.summary import summary
from aiodist.observe.view import JobView, RankView

LOOKS = 7
LAST = 64  # operations that a look shows of each rank, as `observe.source.FEW`
NEW = 16  # of them since the look before
NODE = 8
OPS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")


def a_rank(rank: int, ranks: int, look: int) -> RankView:
    """A rank, as it is seen in one of the looks."""
    node = rank // NODE
    world = Group("world", 0, range(ranks))
    local = Group(f"node {node}", 0, range(node * NODE, min(ranks, (node + 1) * NODE)))
    sums = [
        Sum(group, op, "float32", (1000,), "", -1, 0, 4000, 100 * look, 50 * look, 0, 0.1 * look, 0.2 * look)
        for group in (world, local)
        for op in OPS
    ]
    last = [
        Record(
            *((world, local)[number % 2], "all_reduce", number // 2, "float32", (1000,), "SUM", -1, 0, 4000),
            *(None, 100.0 + number / 100 + (rank * 7 % 13) / 1e4, 0.0, 0.0, 0.0, 0.0, False),
        )
        for number in range(NEW * look, NEW * look + LAST)
    ]
    links = [Link((rank + NODE * step) % ranks, 1000 * look, 0.1, 0.001, 0) for step in range(1, 9)]
    recording = Recording(
        *(1000 + rank, rank, ranks, 0, 1e9, 1.0, 0.0, (world, local), tuple(last), ()),
        Vitals(10.0, 1, 10.0, 0.01, 100 * look, 0),
        tuple(sums),
        {"argv": ["train.py"], "clock": "one"},
        links=tuple(links),
    )
    return RankView(f"host{node}", "cafe", recording, 10.0, memory=10**8, cpu=float(look))


def milliseconds(call: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Print what an exposition costs, and what comes before it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    ranks = parser.parse_args().ranks
    tally = Tally()
    judged, told = [], []
    for look in range(1, LOOKS + 1):
        job = JobView("cafe", tuple(a_rank(rank, ranks, look) for rank in range(ranks)))
        judged.append(milliseconds(lambda: summary(None, job)))  # noqa: B023
        seen = summary(None, job)
        told.append(milliseconds(lambda: exposition(seen, job, tally)))  # noqa: B023
    body, _ = exposition(seen, job, tally)
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    print(f"{ranks} ranks: {series} series, {len(body)} bytes")
    before, cost = statistics.median(judged), statistics.median(told)
    print(f"summary and verdicts {before:.0f} ms, exposition {cost:.0f} ms")


if __name__ == "__main__":
    main()
