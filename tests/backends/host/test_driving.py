"""Polling while an operation is awaited: bounded, once a turn of the loop, and outside the awaiting task."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any, cast

import pytest

from aiodist.backends.host import driving
from aiodist.backends.host.driving import BACK_OFF, LOST, Poller
from aiodist.net import turn
from aiodist.net.turn import PlainTurnClock

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="")


class Channel:
    """Counts its polls; ends its operation with one of them."""

    def __init__(self, operation: Operation, ends_with: int) -> None:
        self.polls = 0
        self.marks: set[str] = set()
        self._operation = operation
        self._ends_with = ends_with

    def poll(self) -> None:
        self.polls += 1
        self.marks.add(mark.get())
        if self.polls == self._ends_with:
            self._operation.idle = True


class Operation:
    def __init__(self, ends_with: int = 0) -> None:
        self.idle = False
        self.channel = Channel(self, ends_with)
        self.channels: list[Any] = [self.channel]

    def poll(self) -> bool:
        for channel in self.channels:
            channel.poll()
        return self.idle or not self.channels


class Clock:
    """Time that passes by 10 µs with each poll."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lost = 0.0

    def monotonic(self) -> float:
        self.now += 10e-6
        return self.now

    def give_core(self) -> None:
        self.now += self.lost


class ClockedTurn(PlainTurnClock):
    """A turn of the running loop, by the clock that is set: the engine's would ask the real one."""

    def _begin(self) -> float:
        now: float = vars(turn)["time"].monotonic()
        self.since = now
        asyncio.get_running_loop().call_soon(self._turned)
        return now

    def _turned(self) -> None:
        self.since = None


def clocked() -> Any:
    return ClockedTurn()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(driving, "time", clock)
    monkeypatch.setattr(turn, "time", clock)
    monkeypatch.setattr(driving, "_yield_core", clock.give_core)
    return clock


async def test_it_polls_until_the_operation_is_over(clock: Clock) -> None:
    poller, operation = Poller(clocked(), 1.0), Operation(ends_with=7)
    poller.until(operation.poll)
    assert operation.channel.polls == 7


async def test_a_turn_of_the_loop_has_one_budget(clock: Clock) -> None:
    poller, operation = Poller(clocked(), 200e-6), Operation()
    poller.until(operation.poll)
    polls = operation.channel.polls
    assert 25 <= polls <= 49  # two looks at the clock for 4 of them
    poller.until(operation.poll)
    assert operation.channel.polls == polls + 5
    await asyncio.sleep(0)
    poller.until(operation.poll)
    assert operation.channel.polls == 2 * polls + 5


async def test_who_loses_its_core_by_polling_sleeps_instead(clock: Clock) -> None:
    poller, operation = Poller(clocked(), 50e-6), Operation()
    clock.lost = 2 * LOST
    poller.until(operation.poll)
    assert operation.channel.polls == 9
    await asyncio.sleep(0)
    assert not poller.until(operation.poll)
    assert operation.channel.polls == 10
    clock.now += BACK_OFF
    assert poller.until(operation.poll)
    assert operation.channel.polls > 11


async def test_nothing_to_poll_costs_nothing(clock: Clock) -> None:
    operation = Operation()
    operation.channels = []
    Poller(clocked(), 1.0).until(operation.poll)
    assert operation.channel.polls == 0


async def test_what_it_sets_off_does_not_inherit_the_tasks_context(clock: Clock) -> None:
    mark.set("the awaiting task's")
    operation = Operation(ends_with=1)
    Poller(clocked(), 1.0).until(operation.poll)
    assert operation.channel.marks == {""}


async def test_a_callback_that_awaits_again_does_not_nest(clock: Clock) -> None:
    poller, outer, inner = Poller(clocked(), 1.0), Operation(ends_with=2), Operation()
    outer.channels.append(cast("Any", type("", (), {"poll": lambda self: poller.until(inner.poll)})()))
    poller.until(outer.poll)
    assert inner.channel.polls == 0


async def test_a_look_that_finds_something_ends_polling() -> None:
    poller, polls = Poller(clocked(), 1.0), iter([False] * 7 + [True])
    assert poller.until(lambda: next(polls))
    assert list(polls) == []


async def test_looks_in_vain_end_with_the_budget() -> None:
    poller, polls = Poller(clocked(), 200e-6), Polls()
    assert poller.until(polls)
    assert polls.count > 1


async def test_where_polling_rests_there_is_one_look() -> None:
    poller, polls = Poller(clocked(), 1.0), Polls()
    poller._polls_again = float("inf")
    assert not poller.until(polls)
    assert polls.count == 1
    assert poller.until(lambda: True)


class Polls:
    """Polls that find nothing."""

    count = 0

    def __call__(self) -> bool:
        self.count += 1
        return False
