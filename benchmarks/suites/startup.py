"""init and the first all_reduce: from a common start until the slowest rank has the result."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.crew import Crew, CrewError, free_port
from benchmarks.run import Run, Step

_LEAD = 0.1  # seconds from the order until all begin at once


def init(run: Run) -> list[Step]:
    """One step for each world size; processes are up, and modules imported."""
    sizes = (2, 4) if run.settings.quick else (2, 4, 8, 16)
    return [Step("init", f"{size} ranks", partial(_init, run, size)) for size in sizes]


def _init(run: Run, size: int) -> None:
    peers = run.peers("aiodist", "gloo")
    crews: dict[str, Crew] = {}
    taken: dict[str, list[float]] = {}
    try:
        for peer in peers:
            run.progress.show(f"{peer.name} starts")
            crews[peer.name] = Crew(peer, size)
        for turn in range(min(5, 2 * run.settings.turns)):
            for name, crew in crews.items():
                run.progress.show(f"{name} {turn + 1}")
                at = time.monotonic() + _LEAD
                ends = crew.call("init", port=free_port(), at=at)
                taken.setdefault(name, []).append(max(ends) - at)
                crew.call("disconnect")
    except CrewError as error:
        run.results.note(f"init on {size} ranks: {error}")
    finally:
        for crew in crews.values():
            crew.close()
    for name, values in taken.items():
        run.results.add("init", "init + first all_reduce", name, values, ranks=size)
