"""Colours only where somebody sees them, and a bar."""

from __future__ import annotations

import pytest

from aiodist.base.terminal import bar, hue, painter, takes_colour


@pytest.mark.parametrize(
    ("is_terminal", "environ", "expected"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": ""}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_where_colours_go(is_terminal: bool, environ: dict[str, str], expected: bool) -> None:
    assert takes_colour(is_terminal, environ) is expected


def test_a_text_is_painted_or_stays() -> None:
    assert painter(True)("green", "ok") == "\x1b[32mok\x1b[0m"
    assert painter(True)("green", "") == ""
    assert painter(False)("green", "ok") == "ok"


def test_neighbours_have_different_hues() -> None:
    shown = [hue(number, "x", True) for number in range(11)]
    assert len(set(shown)) == 10 and shown[0] == shown[10]
    assert {text.replace("\x1b[0m", "")[-1] for text in shown} == {"x"}
    assert hue(3, "x", False) == "x" and hue(3, "", True) == ""


def test_a_bar_fills() -> None:
    assert bar(0, 4, 4) == "────   0 %"
    assert bar(1, 4, 4) == "━───  25 %"
    assert bar(4, 4, 4) == "━━━━ 100 %"
