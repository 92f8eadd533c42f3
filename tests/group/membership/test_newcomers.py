"""Newcomers that could not come in are counted again, later and later."""

from __future__ import annotations

from aiodist.group.membership.newcomers import PassedOver


def test_the_first_time_it_counts_at_once_again_and_then_later_and_later() -> None:
    passed = PassedOver()
    now, pauses = 100.0, []
    for _ in range(9):
        passed.note([b"a"], now)
        pause = 0.0
        while passed.at(now + pause):
            assert passed.at(now + pause) == {b"a"}
            pause += 5
        pauses.append(pause)
        now += pause
    assert pauses == [0, 10, 30, 70, 150, 310, 600, 600, 600]


def test_each_newcomer_has_its_own_pauses() -> None:
    passed = PassedOver()
    passed.note([b"a"], 0)
    passed.note([b"a", b"b"], 0)
    assert passed.at(9.9) == {b"a"} and passed.at(10) == set()
