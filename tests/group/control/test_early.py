"""News of groups that are to come: kept in order, within bounds, whatever is said."""

from __future__ import annotations

from aiodist.group.control.early import LIMIT, Early
from aiodist.group.control.messages import EVERYBODY, Message, Say


def left(context: int, number: int = 1) -> Message:
    return Message(Say.left, 2, number, EVERYBODY, 64, (context, 2, number, ()))


def test_what_was_kept_is_taken_once_and_in_order() -> None:
    early = Early()
    for number in range(3):
        early.keep(7, left(7, number))
        early.keep(8, left(8, number))
    assert early.take(7) == [left(7, number) for number in range(3)]
    assert early.take(7) == []
    assert len(early) == 1
    early.take(8)
    assert early._nbytes == 0


def test_groups_without_end() -> None:
    early = Early()
    for context in range(20_000):
        early.keep(context, left(context))
    assert early._nbytes <= LIMIT
    assert 1000 < len(early) < 10_000
    assert early.take(0) == []
    assert early.take(19_999) == [left(19_999)]


def test_messages_without_end_of_one_group() -> None:
    early = Early()
    long = Message(Say.broken, 2, 1, EVERYBODY, 64, (7, "lost", "x" * 60_000))
    for _ in range(1000):
        early.keep(7, long)
        assert early._nbytes <= LIMIT
