"""The tables of results, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from aiodist.cli.bench.measures import show_seconds
from aiodist.cli.bench.table import table
from benchmarks.training.language.ways import WAYS

BUSY = 0.1
"""Share of the cores' time that others may take before figures are not to be trusted."""

DOUBT = "**The machine was busy, in some runs more than in others: do not trust these figures.**"

Results = Mapping[str, Any]
Curve = Sequence[Mapping[str, float]]


def at(curve: Curve, by: str, wanted: float) -> float | None:
    """The loss where `by` (seconds, step, sent) is so much, between two points of the curve; None: beyond."""
    for before, after in pairwise(curve):
        if before[by] <= wanted <= after[by]:
            share = (wanted - before[by]) / ((after[by] - before[by]) or 1.0)
            return before["loss"] + share * (after["loss"] - before["loss"])
    return None


def reached(curve: Curve, loss: float) -> Mapping[str, float] | None:
    """The first point at which a loss is reached; None: it is not."""
    return next((point for point in curve if point["loss"] <= loss), None)


def trained(results: Results) -> str:
    """What the runs have shown: a line for each algorithm."""
    runs, seconds = results["runs"], results["settings"]["seconds"]
    times = [seconds / 4, seconds / 2, seconds]
    head = ["algorithm", "rate", "steps", "a step", "a rank sent", "a second"]
    head += [f"loss at {time:.0f} s" for time in times]
    goal = runs["ddp"]["curve"][-1]["loss"] if "ddp" in runs else None
    head += [] if goal is None else ["as DDP's last: after", "sent"]
    rows = []
    for name, run in runs.items():
        curve, last = run["curve"], run["curve"][-1]
        row = [WAYS[name].label, f"{run['rate']:g}", f"{last['step']:.0f}"]
        row += [show_seconds(last["seconds"] / last["step"]), show_bytes(last["sent"])]
        row.append(f"{last['sent'] / last['seconds'] * 8e-6:.1f} Mbit")
        found = [at(curve, "seconds", time) for time in times]
        row += ["–" if loss is None else f"{loss:.3f}" for loss in found]
        if goal is not None:
            point = reached(curve, goal)
            row += ["–", "–"] if point is None else [f"{point['seconds']:.0f} s", show_bytes(point["sent"])]
        rows.append(row)
    return table(head, rows)


def simulated(results: Results) -> str:
    """What `aiodist sim` has said: a line for each network."""
    lines = results["sim"]
    ways = list(dict.fromkeys(line["way"] for line in lines))
    found = {(line["rate"], line["ranks"], line["way"]): line["step"] for line in lines}
    rows = [
        [rate, f"{ranks:,}", *(show_seconds(found[rate, ranks, way]) for way in ways)]
        for rate, ranks in dict.fromkeys((line["rate"], line["ranks"]) for line in lines)
    ]
    return table(["links", "ranks", *(WAYS[way].label for way in ways)], rows)


def about(results: Results) -> str:
    """The machine, what was trained, and how much of the machine others took."""
    machine = results["machine"]
    said = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
        f"torch {machine['packages'].get('torch', '')}, {machine['date'][:10]}, commit {machine['commit']}."
    )
    if results.get("runs"):
        settings = results["settings"]
        values = next(iter(results["runs"].values()))["values"]
        others = ", ".join(
            f"{WAYS[name].label} {100 * run['others']:.0f} %" for name, run in results["runs"].items()
        )
        said += (
            f" {settings['ranks']} ranks, cables of {settings['link']}, {settings['seconds']:g} s each; "
            f"{values:,} values in the model, {settings['train']:,} characters to train on and "
            f"{settings['held_out']:,} held out (text {settings['text']}). "
            f"Other processes took of the cores' time: {others}."
        )
        if max(run["others"] for run in results["runs"].values()) >= BUSY:
            said += f" {DOUBT}"
    return said


def page(results: Results) -> str:
    """All that is said of results."""
    parts = [about(results)]
    if results.get("runs"):
        parts += ["## Measured", trained(results)]
    if results.get("sim"):
        step = results["alone"]
        alone = show_seconds(step["forward"] + step["backward"] + step["update"])
        parts += ["## Simulated: the time of a step", simulated(results)]
        parts.append(f"Computing alone takes {alone} of each step (processor time, measured in one process).")
    return "\n\n".join(parts)


def show_bytes(nbytes: float) -> str:
    """'12.3 MB', '4.56 GB'."""
    return f"{nbytes / 1e6:.3g} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.3g} GB"
