"""A verdict as text: one box. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from aiodist.observe.verdict import Verdict

WIDTH = 80


def render(verdict: Verdict) -> str:
    """The box, of several lines; the last one has no newline. What came from ranks is fit to show already."""
    return boxed(
        f"aiodist: {_TITLES.get(verdict.kind, 'the job stands still')}", [verdict.title, *verdict.lines]
    )


def boxed(title: str, rows: Iterable[str]) -> str:
    """Lines below a title, with a rule above and below, and a bar at the left."""
    top = f"╭─ {title} "
    top += "─" * max(0, WIDTH - len(top))
    return "\n".join([top, *(f"│ {row}".rstrip() for row in rows), "╰" + "─" * (WIDTH - 1)])


_TITLES = {
    "slow link": "one connection is slower than the others",
    "straggler": "one rank is slower than the others",
    "moving": "an operation takes long",
    "crowded": "calls take long",
}
