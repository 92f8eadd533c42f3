"""What a store may answer, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.base.errors import WireError
from aiodist.rendezvous.answers import check_failure, check_news, words_of
from aiodist.rendezvous.methods import METHODS, check_answer

GOOD: list[tuple[str, list[Any], Any]] = [
    ("set", ["k", b"v", None], None),
    ("multi_get", [["a", "b"], 1.0], [b"1", b"2"]),
    ("check", [["a"]], True),
    ("add", ["n", 1], 5),
    ("compare_set", ["k", b"", b"v"], b"v"),
    ("delete_key", ["k"], False),
    ("list_keys", [""], ["a", "b"]),
    ("num_keys", [""], 0),
    ("gather", ["g", 0, 2, b"c", 1.0], [b"c", b"d"]),
]


@pytest.mark.parametrize(("method", "args", "value"), GOOD)
def test_an_answer_fits_its_call_and_nothing_else_does(method: str, args: list[Any], value: Any) -> None:
    check_answer(method, args, value)
    others: list[Any] = [None, 1, True, "x", b"v", [b"v"], ["a"], [1], {}, 1.5]
    for other in others:
        if type(other) is type(value):
            continue
        with pytest.raises(WireError, match=f"answers {method} with"):
            check_answer(method, args, other)


def test_lists_are_of_the_right_kind_and_length() -> None:
    for method, args, value in (
        ("multi_get", [["a", "b"], 1.0], [b"1"]),
        ("multi_get", [["a"], 1.0], ["text"]),
        ("gather", ["g", 0, 2, b"c", 1.0], [b"c"]),
        ("list_keys", [""], [b"a"]),
    ):
        with pytest.raises(WireError):
            check_answer(method, list(args), value)


def test_every_change_has_its_answer() -> None:
    for method in (name for name, known in METHODS.items() if known.changes):
        with pytest.raises(WireError):
            check_answer(method, [["k"], 0, 1], {})


def test_failures_and_news() -> None:
    assert check_failure(["timeout", "m", "h", [1]]) == ("timeout", "m", "h", [1])
    assert check_failure(["usage", "m", "", []])[3] == []
    news = [["k", b"v", 1], ["k", None, 2], None]
    assert check_news(news) is news
    failures: list[Any] = [None, [], ["timeout"], ["timeout", 1, "h", []], ["timeout", "m", "h", [b"1"]]]
    for wrong in failures:
        with pytest.raises(WireError):
            check_failure(wrong)
    assert words_of("gone\nfor good") == "gone for good"
    assert words_of(["gone"]) == words_of(None) == "" and len(words_of("x" * 1000)) == 200
    several: list[Any] = [
        None,
        5,
        [5],
        [["k", b"v"]],
        [[b"k", b"v", 1]],
        [["k", "v", 1]],
        [["k", b"v", None]],
    ]
    for wrong in several:
        with pytest.raises(WireError):
            check_news(wrong)
