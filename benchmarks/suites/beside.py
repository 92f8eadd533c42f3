"""Effects of all_reduces on the loop beside them, and of computing on them; two ranks."""

from __future__ import annotations

import os
from functools import partial

from aiodist.cli.bench.measures import show_size
from benchmarks.peers import AIODIST
from benchmarks.run import Run, Step

KINDS = ("numpy", "python")
FACTORS = (1.0, 3.0)
GROUPS, EACH = 10, 100
_SIZE = 2


def lateness(run: Run) -> list[Step]:
    """A 1 ms ticker on the loop while the ranks saturate their cores."""
    nbytes = 16 << 20 if run.settings.quick else 256 << 20
    label = f"all_reduces of {show_size(nbytes)}"
    return [Step("lateness", label, partial(_lateness, run, nbytes), _SIZE)]


def _lateness(run: Run, nbytes: int) -> None:
    seconds = 0.5 if run.settings.quick else 3.0
    rounds = [
        run.crew(AIODIST, _SIZE).call("late", nbytes=nbytes, seconds=seconds)
        for _ in range(1 if run.settings.quick else 3)
    ]
    for name in ("p50", "p99", "max", "idle_p99"):
        worst = [max(rank[name] for rank in found) for found in rounds]
        run.results.add("lateness", name, "aiodist", worst, ranks=_SIZE, nbytes=nbytes)


def loaded(run: Run) -> list[Step]:
    """A 1 ms ticker while 1,000 small all_reduces are in flight, 100 in each of ten groups."""
    return [Step("load", f"{GROUPS * EACH} in flight", partial(_loaded, run), _SIZE)]


def _loaded(run: Run) -> None:
    seconds = 0.5 if run.settings.quick else 2.0
    rounds = [
        run.crew(AIODIST, _SIZE).call("loaded", groups=GROUPS, each=EACH, seconds=seconds)
        for _ in range(1 if run.settings.quick else 3)
    ]
    for name in ("p50", "p99", "max", "one"):
        worst = [max(rank[name] for rank in found) for found in rounds]
        run.results.add("load", name, "aiodist", worst, ranks=_SIZE, nbytes=1 << 10)


def overlap(run: Run) -> list[Step]:
    """An all_reduce beside NumPy products, and beside Python bytecode, on the loop's thread."""
    nbytes = 16 << 20 if run.settings.quick else 64 << 20
    return [
        Step("overlap", f"{kind}, {factor:g}×", partial(_overlap, run, nbytes, kind, factor), _SIZE)
        for kind in KINDS
        for factor in FACTORS
    ]


def _overlap(run: Run, nbytes: int, kind: str, factor: float) -> None:
    cores = len(os.sched_getaffinity(0))
    ratios: dict[str, list[float]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(1 if run.settings.quick else 3):
        for peer in run.peers("aiodist", "gloo"):
            run.progress.show(peer.name)
            crew = run.crew(peer, _SIZE)
            ranks = crew.call("overlap", nbytes=nbytes, kind=kind, factor=factor, turns=3)
            ratios.setdefault(peer.name, []).append(against_ideal(ranks, cores))
            for name in ("reduce", "compute", "both"):
                worst = max(rank[name] for rank in ranks)
                figures.setdefault(peer.name, {}).setdefault(name, []).append(worst)
    for name, values in ratios.items():
        what = f"{kind} {factor:g}×"
        run.results.add("overlap", what, name, values, ranks=_SIZE, nbytes=nbytes, unit="ratio")
        for part, taken in figures[name].items():
            run.results.add("overlap", f"{what} {part}", name, taken, ranks=_SIZE, nbytes=nbytes)


def against_ideal(ranks: list[dict[str, float]], cores: int) -> float:
    """Both together, over the least that these cores allow: the longer alone, or all CPU time spread."""
    longest = max(max(rank["reduce"], rank["compute"]) for rank in ranks)
    spent = sum(rank["cpu"] for rank in ranks) / cores
    return max(rank["both"] for rank in ranks) / max(longest, spent)
