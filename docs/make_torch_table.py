"""Writes torch-table.md: every public name of torch.distributed, and what replaces it here.

    python docs/make_torch_table.py

The names and reasons are in `torch_calls.py`; signatures are read from aiodist. torch is not needed.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from torch_calls import SECTIONS, Fate

import aiodist

PAGE = Path(__file__).parent / "torch-table.md"
HEAD = """\
# Every name of torch.distributed

Look up a name of torch.distributed here to see what replaces it. [Porting](porting-from-torch.md) explains
the differences. `docs/make_torch_table.py` writes this page from torch 2.13 and 2.14;
`tests/test_torch_table.py` checks it.

| | |
|---|---|
| ✓ | here, with torch's parameters in torch's order; what communicates is awaited |
| ≈ | here, spelled differently |
| planned | not yet |
| — | has no meaning here |

Modules of their own (`rpc`, `fsdp`, `tensor`, `checkpoint`, `elastic`, `pipelining`, …) are not listed.
"""


def resolve(dotted: str) -> object:
    """The object of aiodist that a dotted name names; AttributeError where there is none."""
    found: object = aiodist
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def ours(owner: str, name: str, fate: Fate) -> str:
    """The dotted name in aiodist of a row; '' where there is none."""
    if fate.ours == "=":
        return f"{owner}.{name}" if owner else name
    return fate.ours


def parameters(dotted: str) -> list[str] | None:
    """The names of an aiodist callable's parameters, without self; None for what cannot be called so."""
    found = resolve(dotted)
    if not callable(found) or found is aiodist.ReduceOp:
        return None
    return [name for name in inspect.signature(found).parameters if name != "self"]


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, owner, names in SECTIONS.values():
        counts = [sum(fate.mark == mark for fate in names.values()) for mark in ("✓", "≈", "planned", "—")]
        parts.append(f"\n## {title}\n\n{counts[0]} ✓, {counts[1]} ≈, {counts[2]} planned, {counts[3]} —.\n")
        parts.append("| torch | | aiodist | |\n|---|---|---|---|")
        for name in sorted(names, key=lambda n: (n.casefold(), n)):
            fate = names[name]
            target = ours(owner, name, fate)
            shown = f"`{target}`" if target else ""
            parts.append(f"| `{name}` | {fate.mark} | {shown} | {fate.note} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
