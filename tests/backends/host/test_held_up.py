"""The receives that wait behind one that may have been given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiodist.backends.host.held_up import HeldUp


class Handle:
    """What it asks of a Work."""

    def __init__(self, untold: bool = False) -> None:
        self.untold = untold

    def _may_be_given_up(self) -> bool:
        return self.untold


class Posted:
    """What it asks of an operation."""

    tag = 0


def handle(untold: bool = False) -> Any:
    return Handle(untold)


def test_a_receive_waits_behind_any_untold_one_of_its_tag() -> None:
    held_up = HeldUp()
    first, second, third = handle(untold=True), handle(), handle()
    assert [held_up.is_behind(one, 0, 1) for one in (first, second, third)] == [False, True, True]
    assert not held_up.is_behind(third, 1, 1)
    first.untold = False
    assert not held_up.is_behind(handle(), 0, 1)


@pytest.mark.parametrize("sources", [(1, -1), (-1, 1), (-1, -1)])
def test_it_waits_behind_those_that_may_get_its_message(sources: tuple[int, int]) -> None:
    held_up = HeldUp()
    first = handle(untold=True)
    assert not held_up.is_behind(first, 0, sources[0])
    assert held_up.is_behind(handle(), 0, sources[1])
    assert held_up.is_behind(handle(), 0, 2) == (sources[0] == -1)
    first.untold = False
    assert not held_up.is_behind(handle(), 0, sources[1])


def test_one_that_is_dropped_holds_nobody_up() -> None:
    held_up = HeldUp()
    assert not held_up.is_behind(handle(untold=True), 0, 1)
    assert not held_up.is_behind(handle(), 0, 1)


def test_one_is_remembered_behind_any_number_of_others() -> None:
    """Also where it cannot be given up yet when it is added: that is noted a moment later."""
    held_up = HeldUp()
    works = [handle() for _ in range(1000)]
    for work in works:
        held_up.is_behind(work, 0, 1)
        work.untold = True
    for work in works[:-1]:
        work.untold = False
    assert held_up.is_behind(handle(), 0, 1)
    works[-1].untold = False
    assert not held_up.is_behind(handle(), 0, 1)


@pytest.mark.parametrize("tags", [1, 5000])
def test_little_is_remembered_of_receives_whose_results_are_known(tags: int) -> None:
    held_up = HeldUp()
    first = handle(untold=True)
    held_up.is_behind(first, 0, 1)
    for number in range(5000):
        held_up.is_behind(handle(), number % tags, 1)
    assert sum(len(untold) for by_source in held_up.untold.values() for untold in by_source.values()) < 200
    assert held_up.is_behind(handle(), 0, 1)


async def test_each_is_posted_two_turns_after_its_own_call_in_order() -> None:
    loop, held_up, posted = asyncio.get_running_loop(), HeldUp(), list[str]()

    def hold(name: str) -> Any:
        operation: Any = Posted()
        held_up.hold(operation, loop, lambda _: posted.append(name))
        return operation

    hold("first")
    removed = hold("removed")
    await asyncio.sleep(0)
    hold("second")
    assert held_up.remove(removed) and not held_up.remove(removed)
    assert not posted
    await asyncio.sleep(0)
    assert posted == ["first"]
    assert held_up.holds(0) and not held_up.holds(1)
    await asyncio.sleep(0)
    assert posted == ["first", "second"]
    assert not held_up.holds(0)
    hold("never")
    assert len(held_up.take()) == 1
    for _ in range(3):
        await asyncio.sleep(0)
    assert posted == ["first", "second"]
