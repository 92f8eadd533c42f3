"""The program of each rank of `aiodist bench`; rank 0 shows progress and results.

Started by the command: `python -m aiodist.cli.bench OPTIONS`, the options as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from aiodist import _engine
from aiodist.base.environment.files import write_file
from aiodist.base.environment.processor_load import doubt, meanwhile, own_seconds, sample
from aiodist.base.terminal import PLAIN, Paint, bar, painter
from aiodist.cli.bench.calls import Bound, per_operation, timed
from aiodist.cli.bench.cases import IN_FLIGHT, Case
from aiodist.cli.bench.measures import (
    Spread,
    busbw,
    quantile,
    show_bandwidth,
    show_seconds,
    show_size,
    spread,
)
from aiodist.cli.bench.sweep import SweepLine, agree, cases, lateness, sweep
from aiodist.cli.bench.table import table
from aiodist.group.runtime.init import init_process_group
from aiodist.group.runtime.running import run


async def main(options: dict[str, Any]) -> None:
    """Measure everything; rank 0 prints."""
    paint = painter(options["colour"])
    async with await init_process_group() as pg:
        before, spent = sample(), own_seconds()
        wanted = cases(options["kinds"], options["sizes"])
        progress = SweepProgress(len(wanted) + 2, options["live"] if pg.rank == 0 else "")
        lines: list[SweepLine] = []
        async for case, line in sweep(pg, wanted, options["budget"]):
            if line is None:
                progress.step(f"{case.what} {show_size(case.nbytes) if case.nbytes else ''}")
            else:
                lines.append(line)
        progress.step(f"{IN_FLIGHT} all_reduces in flight")
        burst = Bound(pg, Case("inflight", 1024))
        await burst.prepare()
        samples, inner = await agree(pg, burst.once(), options["budget"])
        await pg.barrier()
        one = spread([per_operation(burst.case, t) for t in await timed(burst.once(), samples, inner)])
        progress.step("lateness of the loop")
        largest = max(options["sizes"])
        late = await lateness(pg, largest, 4 * options["budget"])
        progress.end()
        own = dict(await pg.all_gather_object((os.getpid(), own_seconds() - spent)))
        seen = meanwhile(before, sample(), own)
        doubts = doubt(seen) if seen else ""
        if pg.rank == 0:
            print(f"{pg.size} ranks, float32, medians on rank 0; busbw as nccl-tests define it")
            print(f"engine: {_engine.describe()}\n")
            print(sweep_table(lines, pg.size, paint))
            print()
            print(extras(one, late, largest))
            if options["json"]:
                write_file(options["json"], report(lines, one, late, largest, pg.size, doubts) + "\n")
            if doubts:
                print(f"\n{paint('yellow', doubts)}")


def sweep_table(lines: list[SweepLine], size: int, paint: Paint = PLAIN) -> str:
    """One row for each measured case."""
    rows = []
    for line in lines:
        timing = [show_seconds(line.seconds), show_seconds(line.low), show_seconds(line.high)]
        if line.nbytes:
            algbw = line.nbytes / line.seconds
            bus = busbw(line.what, line.nbytes, size, line.seconds)
            rows.append(
                [line.what, show_size(line.nbytes), *timing, show_bandwidth(algbw), show_bandwidth(bus)]
            )
        else:
            rows.append([line.what, "", *timing, "", ""])
    head = ["operation", "size", "time", "10%", "90%", "algbw GB/s", "busbw GB/s"]
    first, *rest = table(head, rows).splitlines()
    return "\n".join([paint("bold", first), *rest])


def extras(one: Spread, late: list[float], nbytes: int) -> str:
    """The figures that are no sweep, as text."""
    shown = ", ".join(
        f"{name} {show_seconds(quantile(late, share))}"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )
    return (
        f"{IN_FLIGHT} all_reduces of 1 KiB in flight: {1 / one.median:,.0f}/s\n"
        f"a 1 ms ticker during all_reduces of {show_size(nbytes)} is late by: {shown}"
    )


def report(
    lines: list[SweepLine], one: Spread, late: list[float], nbytes: int, size: int, doubts: str
) -> str:
    """The results as JSON; seconds and bytes. 'doubt' says why they are not to be trusted; '': they are."""
    return json.dumps(
        {
            "ranks": size,
            "engine": _engine.describe(),
            "dtype": "float32",
            "doubt": doubts,
            "sweep": [
                asdict(line)
                | {"busbw": busbw(line.what, line.nbytes, size, line.seconds) if line.nbytes else None}
                for line in lines
            ],
            "in_flight_per_second": 1 / one.median,
            "lateness": {
                "nbytes": nbytes,
                "p50": quantile(late, 0.5),
                "p99": quantile(late, 0.99),
                "max": max(late),
            },
        },
        indent=1,
    )


class SweepProgress:
    """One line that is drawn over, as the launcher shows lines that end in a carriage return.

    Args:
        steps: how many there will be.
        where: 'stdout', where the results draw over it, 'stderr', or '' for nowhere.
    """

    def __init__(self, steps: int, where: str) -> None:
        self._steps = steps
        self._stream = {"stdout": sys.stdout, "stderr": sys.stderr}.get(where)
        self._done = 0
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """Show that the next step begins."""
        self._show(f"  {text}\r")
        self._done += 1

    def end(self) -> None:
        """Show that all is done."""
        if self._stream is sys.stderr:
            self._show("  measured\n")

    def _show(self, text: str) -> None:
        if self._stream is not None:
            elapsed = time.monotonic() - self._began
            self._stream.write(f"{bar(self._done, self._steps)} {elapsed:4.0f} s{text}")
            self._stream.flush()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
