"""Text of others, made fit for a terminal, a log or an error. Pure; everything may import it.

What another process, host, server or file says is shown through `one_line`, and as what that one said
("the peer says: …"), never as aiodist's own words: an unauthenticated peer must not move the cursor, begin a
line of its own, or give advice in our name.
"""

from __future__ import annotations

LIMIT = 400
"""Characters that are shown of one statement, unless the caller says otherwise."""


def one_line(text: str | bytes | bytearray | memoryview, limit: int = LIMIT) -> str:
    """Foreign text as one line that a terminal takes no orders from; the cost is bounded by `limit`.

    Control characters and escape sequences, line ends of every kind, invisible marks (such as those that
    reverse the direction of reading) and bytes that are no UTF-8 each become a space or a replacement mark;
    spaces at the ends go, and what is longer than `limit` characters ends in '…'.
    """
    if not isinstance(text, str):
        text = bytes(memoryview(text)[: 4 * limit + 4]).decode("utf-8", "replace")
    cut = text[: limit + 1]  # before anything is made of it: it may be of any length
    shown = "".join(c if c.isprintable() else " " for c in cut)
    if len(cut) > limit:
        shown = shown[: limit - 1].rstrip() + "…"
    return shown.strip()


def indented(text: str, limit: int = LIMIT, most: int = 24) -> str:
    """Foreign text as one line that keeps the spaces at its beginning, so many at most."""
    bare = text.lstrip(" ")
    return " " * min(most, len(text) - len(bare)) + one_line(bare, limit)


def says(who: str, text: str | bytes | bytearray | memoryview, limit: int = LIMIT) -> str:
    """Foreign text as a quotation: 'the peer says: "…"'. It cannot end its own quotation.

    Args:
        who: in our words, who said it.
        text: what it said; "says nothing" stands for nothing.
        limit: characters of it that are shown.
    """
    shown = one_line(text, limit).replace('"', "'")
    return f'{who} says: "{shown}"' if shown else f"{who} says nothing"
