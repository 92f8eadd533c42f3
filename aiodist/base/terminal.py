"""Text for a terminal: whether it takes colours, a few of them, and a bar for what takes long. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
Paint = Callable[[Style, str], str]
"""Gives a text a style, or leaves it as it is."""

CLEAR = "\r\x1b[K"
"""Wipes the line in which the cursor stands, to draw another over it."""

_HUES = (
    36,
    33,
    32,
    35,
    34,
    96,
    93,
    92,
    95,
    94,
)  # far apart, the dark ones first; no red, which is for errors
_CODES: dict[Style, int] = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def takes_colour(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether an output takes colours: a terminal that can, unless NO_COLOR or FORCE_COLOR says otherwise.

    Args:
        is_terminal: the output is one.
        environ: a variable that is empty says nothing; NO_COLOR comes before FORCE_COLOR.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def painter(coloured: bool) -> Paint:
    """Styles for texts; none where they stay plain."""
    return partial(_paint, coloured)


def hue(number: int, text: str, coloured: bool) -> str:
    """A text in one of ten colours, to tell things apart that have numbers."""
    return _coded(_HUES[number % len(_HUES)], text) if coloured else text


def _paint(coloured: bool, style: Style, text: str) -> str:
    return _coded(_CODES[style], text) if coloured else text


def _coded(code: int, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else text


PLAIN = painter(False)
"""Leaves every text as it is."""


def bar(done: int, total: int, width: int = 24) -> str:
    """'━━━━━━╶───────  40 %': how much of something is done."""
    full = width * done // total
    return f"{'━' * full}{'─' * (width - full)} {100 * done // total:3} %"
