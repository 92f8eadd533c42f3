"""The table of figures, as Markdown, from what was counted, now or earlier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.deaths.figures import milliseconds
from benchmarks.deaths.rows import ROWS

COMMAND = "python -m benchmarks deaths --docs"
HEAD = "| # | Injected → expected | Variant | Ranks | Times | p50 | p99 | max | Hangs | Wrong of checked | |"


def table(results: Mapping[str, Any]) -> str:
    """All rows, those that were not run with the reason.

    Args:
        results: what `__main__` writes: `facts`, and `rows` by number.
    """
    lines = [_about(results["facts"]), "", HEAD, "|" + "---|" * 11]
    for number, row in ROWS.items():
        first = f"| {number} | {row.inject} → {row.expected} |"
        done = results["rows"].get(str(number))
        if done is None or not any(figures["repeats"] for figures in done["figures"]):
            notes = [note for figures in (done or {}).get("figures", []) for note in figures["notes"]]
            reason = row.reason or "; ".join(notes) or "not run"
            lines.append(f"{first} | | | | | | | | {reason} |")
            continue
        for figures in done["figures"]:
            lines.append(first + _line(figures, done["whole"]))
            first = "| | |"
    return "\n".join(lines)


def _about(facts: Mapping[str, Any]) -> str:
    version = facts["packages"].get("aiodist", "")
    return (
        f"Milliseconds from the fault to the error. {facts['cpu']}, {facts['cores']} cores,"
        f" {facts['kernel']}, Python {facts['python']}, aiodist {version} ({facts['commit']}),"
        f" {facts['date'][:10]}; load of the machine before: {facts['load_before']:.1f}."
    )


def _line(figures: Mapping[str, Any], whole: bool) -> str:
    if not figures["repeats"]:
        return f" {figures['what']} | {figures['ranks']} | – | | | | | | {'; '.join(figures['notes'])} |"
    shown = [milliseconds(figures[name]) if name in figures else "" for name in ("p50", "p99", "max")]
    if figures["bar"] is not None and not figures["in_time"]:
        shown[1] = f"**{shown[1]}** (> {figures['bar']:g})"
    times = f"{figures['repeats']:,}" + ("" if whole else " (short)")
    wrong = f"{figures['wrong']} of {figures['checked']:,}" if figures["checked"] else ""
    verdict = "" if figures["good"] else f"**{len(figures['problems'])} not as expected** "
    notes = verdict + "; ".join(figures["notes"])
    cells = [figures["what"], figures["ranks"], times, *shown, str(figures["hangs"]), wrong, notes]
    return "".join(f" {cell} |" for cell in cells)
