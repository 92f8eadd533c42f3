"""Writes states.md: the state machines of aiodist, as they stand in the code, as tables.

python docs/make_states.py
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path

from aiodist.group.control.liveness import CHANGES
from aiodist.group.control.liveness import LoopState as Running
from aiodist.group.membership import drafts
from aiodist.launch import supervisor
from aiodist.transport import ending

PAGE = Path(__file__).parent / "states.md"
HEAD = """\
# State machines

This page is for people who change aiodist. It shows which states four parts have, and which event leads from
one state to another. An event that has no row for a state changes nothing there.

`docs/make_states.py` writes the page from the tables in the code, and `tests/test_states.py` compares it with
them.
The [glossary](glossary.md) has the words.
"""

WORKERS = """\
## The workers of a node

This machine says when the workers are asked to end, and with which signal (`launch/supervisor.py`). If a
worker may be started again, its death is no failure yet.
"""

DRAFTS = """\
## A draft of the next epoch

A *draft* is a proposed next epoch. Each member of the old epoch has this machine for it
(`group/membership/drafts.py`). News comes by several ways, and in any order. The member's next step
follows from this state, from who is ready or gone, and from the time (`group/membership/assembly.py`).
"""

LINKS = """\
## The end of a link

Every link has this machine: links of channels and of the control plane, over sockets and in memory
(`transport/ending.py`).
"""

LOOPS = """\
## What all ranks are told of a blocked event loop

Ranks that see more than the others know tell it to all (`group/control/liveness.py`). They tell it again,
as they see it then, after each doubling of its time. When the loop runs again, all ranks forget the state.
"""

Edge = tuple[str, str, str]
Table = Mapping[tuple[enum.Enum, enum.Enum], enum.Enum]


def edges(table: Table) -> list[Edge]:
    """The arrows of a table, which gives the next state for a state and an event."""
    return [(state.name, after.name, str(event.value)) for (state, event), after in table.items()]


def shown(start: str, arrows: Iterable[Edge]) -> str:
    """A table from (state, next state, event), one row for all events between two."""
    between: dict[tuple[str, str], list[str]] = {}
    for state, after, event in arrows:
        between.setdefault((state, after), []).append(event)
    rows = [
        f"| {state} | {' · '.join(filter(None, events))} | {after} |"
        for (state, after), events in between.items()
    ]
    return "\n".join([f"It begins in {start}.", "", "| From | When | To |", "|---|---|---|", *rows, ""])


def legend(names: Iterable[enum.Enum]) -> str:
    """What each state means, in its own words."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name.name} | {name.value} |" for name in names), ""])


def machine(text: str, table: Table, states: type[enum.Enum]) -> list[str]:
    """The section of a machine whose first state is where it begins."""
    start = next(iter(states)).name
    return [text, shown(start, edges(table)), legend(states)]


def page() -> str:
    """The whole page."""
    loops = [("runs", state.name, "") for state in Running if state is not Running.runs]
    loops += sorted((known.name, seen.name, "") for known, seen in CHANGES)
    parts = [
        HEAD,
        *machine(WORKERS, supervisor.TRANSITIONS, supervisor.State),
        *machine(DRAFTS, drafts.TRANSITIONS, drafts.DraftState),
        *machine(LINKS, ending.STAGES, ending.Stage),
        *(LOOPS, shown("runs", loops)),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
