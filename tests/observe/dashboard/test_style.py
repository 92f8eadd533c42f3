"""The page's colours: whatever is read has enough contrast, light and dark (WCAG 2, level AA)."""

from __future__ import annotations

import re

import pytest

from aiodist.observe.dashboard.server import static_files

SHEET = static_files()["style.css"].body.decode()
STATES = ("running", "waiting", "blocked", "stopped", "dead", "left")
PAIRS = [
    *(("text", back) for back in ("back", "card", "soft", "bad-soft", "warn-soft", "accent-soft")),
    *(("dim", back) for back in ("back", "card", "soft")),
    *((state, back) for state in STATES for back in ("card", "soft")),
    *(("running", "ok-soft"), ("dead", "bad-soft"), ("waiting", "warn-soft"), ("accent", "card")),
]


def colours(selector: str) -> dict[str, str]:
    block = SHEET.partition(selector + " {")[2].partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [":root", ':root[data-theme="dark"]'])
def test_what_is_read_has_contrast(theme: str) -> None:
    known = colours(theme)
    poor = {}
    for ink, back in PAIRS:
        high, low = sorted((luminance(known[ink]), luminance(known[back])), reverse=True)
        if (ratio := (high + 0.05) / (low + 0.05)) < 4.5:
            poor[ink, back] = round(ratio, 2)
    assert not poor


def test_both_themes_have_the_same_colours() -> None:
    assert colours(":root").keys() - {"shadow"} == colours(':root[data-theme="dark"]').keys() - {"shadow"}
