"""What a rank has printed, as lines of text: no terminal, and no page, takes orders from it. Pure."""

from __future__ import annotations

import re

from aiodist.base.sanitize import one_line

LONGEST = 2000
"""Characters of a line that are shown."""

# ECMA-48: CSI …, OSC and the other strings up to their end, and two-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def lines(data: bytes) -> list[str]:
    """The lines of some output, whole ones; of one that was written over and over what was written last."""
    rows = data.decode("utf-8", "replace").split("\n")
    if rows and not rows[-1]:
        rows.pop()
    return [_line(row) for row in rows]


def _line(line: str) -> str:
    bare = _ESCAPES.sub("", line.rstrip("\r")).rpartition("\r")[2]
    bare = bare.expandtabs(8)
    space = len(bare) - len(bare.lstrip(" "))
    return " " * min(space, 80) + one_line(bare, LONGEST)
