"""Parts of a page that a command writes, between two marks."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of figures -->"


def begin(command: str) -> str:
    """The first mark, which names the command."""
    return f"<!-- figures: written by {command} -->"


def put_into(page: Path, text: str, command: str) -> None:
    """Write what a command has found between the marks of a page."""
    before, first, rest = page.read_text().partition(begin(command))
    _, last, after = rest.partition(END)
    if not first or not last:
        raise SystemExit(f"{page} has no marks {begin(command)} … {END}")
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")
