"""Calls between ranks: what is read of them, and which wait in a circle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.calls import RankCalls, calls_of, circles, crowds
from aiodist.observe.view import RankView
from tests.observe.made import a_rank

NOW, LONG_AGO = 100.0, 10.0


def a_caller(rank: int, to: list[list[Any]] = (), full: list[str] = (), **more: Any) -> RankView:  # type: ignore[assignment]
    """A rank that says of its calls: [the handler there that has asked, rank, handler, since]."""
    told = {
        "asked": len(to),
        "served": 7,
        "to": [[*call[1:], 1] for call in to],
        "room": [],
        "full": [[name, LONG_AGO, 2] for name in full],
        "within": [[*call, 1] for call in to],
    }
    return a_rank(rank, now=NOW, about={"calls": told | more})


def ways(*views: RankView, after: float = 30.0) -> list[list[int]]:
    found = circles({view.rank: view for view in views}, after)
    return [[call.rank for call in circle] for circle in found]


def test_two_that_wait_for_each_other() -> None:
    zero = a_caller(0, [["down", 1, "up", LONG_AGO]], ["down"])
    one = a_caller(1, [["up", 0, "down", LONG_AGO]], ["up"])
    assert ways(zero, one) == [[1, 0]]
    assert ways(zero, one, after=90.1) == []
    assert ways(zero, a_caller(1, [["up", 0, "other", LONG_AGO]], ["up"])) == []
    assert ways(zero, a_caller(1, [["other", 0, "down", LONG_AGO]], ["up"])) == [], "it asks nothing itself"


def test_one_place_that_is_taken_is_enough_for_a_circle() -> None:
    zero = a_caller(0, [["down", 1, "up", LONG_AGO]])
    one = a_caller(1, [["up", 0, "down", LONG_AGO]], ["up"])
    (circle,) = circles({0: zero, 1: one}, 30.0)
    assert [(call.by, call.rank, call.name, call.full) for call in circle] == [
        ("up", 0, "down", False),
        ("down", 1, "up", True),
    ]
    assert ways(zero, a_caller(1, [["up", 0, "down", LONG_AGO]])) == [], "a recursion, which may end"


def test_calls_that_no_handler_has_asked_hold_up_nobody() -> None:
    zero = a_caller(0, [["", 1, "up", LONG_AGO]], ["down"], within=[])
    one = a_caller(1, [["up", 0, "down", LONG_AGO]], ["up"])
    assert ways(zero, one) == []
    found = crowds({0: zero, 1: one}, 30.0)
    assert {key: [rank for rank, _ in those] for key, those in found.items()} == {
        (1, "up"): [0],
        (0, "down"): [1],
    }
    assert crowds({0: zero, 1: one}, 90.1) == {}


def test_a_rank_that_waits_for_itself_and_a_circle_that_others_lead_to() -> None:
    own = a_caller(2, [["own", 2, "own", LONG_AGO]], ["own"])
    assert ways(own) == [[2]]
    leads = a_caller(0, [["h", 2, "own", LONG_AGO], ["h", 7, "gone", LONG_AGO]])
    assert ways(leads, own) == [[2]]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=15))
def test_a_circle_is_a_way_that_ends_where_it_begins(edges: list[tuple[int, int]]) -> None:
    views = [
        a_caller(rank, [["h", to, "h", LONG_AGO] for start, to in edges if start == rank], ["h"])
        for rank in range(6)
    ]
    found = ways(*views)
    for circle in found:
        assert all(step in edges for step in zip([circle[-1], *circle], circle, strict=False))
    left = set(edges)  # without ends there is a circle where anything is left
    while ends := {edge for edge in left if not any(start == edge[1] for start, _ in left)}:
        left -= ends
    assert bool(found) == bool(left)
    assert sum(map(len, found)) == len({rank for circle in found for rank in circle})


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        {},
        {"asked": "many"},
        {"asked": 1, "served": 0, "to": [3], "room": [], "full": [], "within": []},
    ]
    + [
        {"asked": 1, "served": 0, "to": [call], "room": [], "full": [], "within": []}
        for call in ([0, "x", float("nan"), 1], ["0", "x", 1.0, 1], [0, "x", 1.0, -1], [0, "x", 1.0])
    ],
)
def test_what_cannot_be_read_says_nothing(told: Any) -> None:
    assert calls_of(a_rank(0, about={"calls": told})) == RankCalls()


def test_text_of_others_is_one_line() -> None:
    (call,) = calls_of(a_caller(0, [["h", 1, "a\nb\x1b[31m", LONG_AGO]])).to
    assert "\n" not in call.name and "\x1b" not in call.name
