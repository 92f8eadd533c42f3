"""A call of a shape that never came before, beside the same call again and again; two ranks."""

from __future__ import annotations

from functools import partial

from benchmarks.peers import AIODIST
from benchmarks.run import Run, Step

WHAT = ("all_reduce", "broadcast", "all_gather")
_SIZE = 2
_CALLS = 200  # of a turn


def cold(run: Run) -> list[Step]:
    """One step for each operation: turns of new shapes and turns of one shape alternate."""
    return [Step("cold", what, partial(_cold, run, what), _SIZE) for what in WHAT]


def _cold(run: Run, what: str) -> None:
    crew = run.crew(AIODIST, _SIZE)
    taken: dict[str, list[float]] = {"aiodist": [], "aiodist-warm": []}
    for turn in range(run.settings.turns):
        for line, found in taken.items():
            new = line == "aiodist"
            ranks = crew.call("cold", what=what, first=turn * _CALLS, count=_CALLS, new=new)
            found.append(max(ranks))
    for line, values in taken.items():
        run.results.add("cold", what, line, values, ranks=_SIZE)
