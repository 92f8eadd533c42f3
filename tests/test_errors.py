"""The hierarchy is the tree that errors.py draws; every error says what to do, and which operation it was."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from aiodist import errors
from aiodist.errors import (
    AiodistError,
    CollectiveMismatch,
    CollectiveTimeout,
    Evicted,
    GroupAborted,
    GroupBroken,
    PeerLost,
    QuorumLost,
    RendezvousTimeout,
    UsageError,
    name_ranks,
)


def drawn() -> dict[str, list[str]]:
    """Class → bases, as the module's docstring draws them."""
    assert errors.__doc__ is not None
    tree: dict[str, list[str]] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)(?: \((\w+)\))?(?:  |$)", line)
        if match is None:
            continue
        bars, name, other = match.groups()
        depth = len(bars) // 4 + ("──" in line)
        path[depth:] = [name]
        tree[name] = ([path[depth - 1]] if depth else ["Exception"]) + ([other] if other else [])
    return tree


def test_hierarchy_equals_the_drawn_tree() -> None:
    found = {
        name: [base.__name__ for base in thing.__bases__]
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception)
    }
    assert found == drawn()
    assert len(found) >= 15


@pytest.mark.parametrize("name", sorted(drawn()))
def test_every_error_is_documented(name: str) -> None:
    assert getattr(errors, name).__doc__


def test_hint_is_part_of_the_text() -> None:
    assert str(UsageError("no such rank", hint="Use 0 to 3")) == "no such rank. Use 0 to 3"
    assert str(UsageError("no such rank")) == "no such rank"
    error = RendezvousTimeout("rank 2 did not come", missing=[2], hint="Start it")
    assert (error.message, error.hint, error.missing) == ("rank 2 did not come", "Start it", (2,))
    assert str(error) == "rank 2 did not come. Start it"


def test_usage_error_and_timeout_are_what_python_calls_so() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        raise UsageError("nonsense")
    with pytest.raises(TimeoutError):
        raise CollectiveTimeout(3, [1])


BROKEN: list[tuple[GroupBroken, dict[str, Any], str]] = [
    (
        PeerLost([3, 1], "process 7 ended"),
        {"ranks": (1, 3), "cause": "process 7 ended"},
        "lost ranks 1 and 3",
    ),
    (CollectiveTimeout(2.5, [4]), {"timeout": 2.5, "missing": (4,)}, "within 2.5 s: rank 4 had not arrived"),
    (CollectiveTimeout(2.5), {"missing": ()}, "all had arrived"),
    (CollectiveMismatch({1: "b", 0: "a"}), {"said": {0: "a", 1: "b"}}, "rank 0: a; rank 1: b"),
    (GroupAborted(2, "no disk"), {"rank": 2, "reason": "no disk"}, "rank 2 aborted the group: no disk"),
    (Evicted("they went on", hint="Join again"), {}, "they went on"),
    (QuorumLost("two of five are left"), {}, "two of five"),
    (GroupBroken("because", hint="Try again"), {}, "because"),
]


@pytest.mark.parametrize(("error", "fields", "text"), BROKEN, ids=lambda value: type(value).__name__)
def test_during_gives_a_copy_that_names_the_operation(
    error: GroupBroken, fields: dict[str, Any], text: str
) -> None:
    cause = OSError("the wire")
    error.__cause__ = cause
    before = str(error)
    named = error.during("all_reduce", 7, "world")
    assert type(named) is type(error)
    assert named is not error
    assert (named.op, named.seq, named.group) == ("all_reduce", 7, "world")
    assert text in str(named)
    assert "(in all_reduce #7 of group 'world')" in str(named)
    assert named.hint == error.hint and str(named).endswith(error.hint)
    assert named.args == (error.message,)
    assert named.__cause__ is cause
    for name, value in fields.items():
        assert getattr(named, name) == getattr(error, name) == value
    assert str(error) == before  # the original says nothing of it
    assert error.op == "" and error.seq is None
    again = named.during("barrier", None, "pair")
    assert "(in barrier of group 'pair')" in str(again)


def test_broken_errors_have_a_hint_each() -> None:
    for error, _, _ in BROKEN:
        if type(error) not in (GroupBroken, Evicted, QuorumLost):
            assert error.hint


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([2, 1], "ranks 1 and 2"),
        ([5, 1, 2], "ranks 1, 2 and 5"),
        (range(10), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8 and 9"),
        (range(13), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"),
    ],
)
def test_ranks_are_listed_in_order_and_cut(ranks: Any, words: str) -> None:
    assert name_ranks(ranks) == words


def test_nothing_is_shared_between_a_copy_and_its_source_but_the_facts() -> None:
    error = PeerLost([1], "gone")
    first, second = error.during("send", 1, "g"), error.during("recv", 2, "g")
    first.add_note("mine")
    assert not hasattr(second, "__notes__")
    assert isinstance(copy.copy(AiodistError("x")), AiodistError)
