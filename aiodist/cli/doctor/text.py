"""Errors of other people's libraries, in one line."""

from __future__ import annotations

import re

_LONGEST = 160


def describe(error: BaseException) -> str:
    """The error at the bottom: libraries wrap the loader's one line into a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))


def one_line(text: str) -> str:
    """Without line breaks and rules, and not too long."""
    text = re.sub(r"[=*-]{4,}", " ", text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
