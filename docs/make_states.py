"""Draws the state machines that are tables in the code, in docs/architecture.md. Run it when a table has
changed; a test compares."""

from __future__ import annotations

import re
from pathlib import Path

from aiodist.membership import drafts

PAGE = Path(__file__).parent / "architecture.md"
BLOCK = re.compile(r"(?<=<!-- states of a draft -->\n).*?(?=<!-- end of states -->)", re.DOTALL)


def diagram() -> str:
    """The states of a draft, as Mermaid draws them."""
    lines = ["stateDiagram-v2", "    [*] --> UNHEARD"]
    lines += [f"    {state.name}: {state.name.lower()}<br>{state.value}" for state in drafts.State]
    lines += [
        f"    {before.name} --> {after.name}: {event.value}"
        for (before, event), after in drafts.TRANSITIONS.items()
    ]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def page(text: str) -> str:
    """The page with the diagram of today's table."""
    return BLOCK.sub(lambda _: diagram(), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
