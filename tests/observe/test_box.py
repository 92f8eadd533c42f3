"""A verdict as a box of lines."""

from __future__ import annotations

import pytest

from aiodist.observe.box import WIDTH, boxed, render
from aiodist.observe.verdict import Verdict


def test_rows_lie_between_two_rules() -> None:
    assert boxed("a title", ["one", "", "  two "]).splitlines() == [
        "╭─ a title ".ljust(WIDTH, "─"),
        "│ one",
        "│",
        "│   two",
        "╰" + "─" * (WIDTH - 1),
    ]


def test_a_title_that_is_wider_than_the_box() -> None:
    assert boxed("x" * 100, []).splitlines()[0] == f"╭─ {'x' * 100} "


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("late", "the job stands still"),
        ("deadlock", "the job stands still"),
        ("moving", "an operation takes long"),
        ("straggler", "one rank is slower than the others"),
        ("slow link", "one connection is slower than the others"),
    ],
)
def test_the_title_says_what_is_the_matter(kind: str, title: str) -> None:
    lines = render(Verdict(kind, (1,), "what", ("details",), "")).splitlines()
    assert lines[0].startswith(f"╭─ aiodist: {title} ─")
    assert lines[1:3] == ["│ what", "│ details"]
    assert len(lines) == 4
