"""The present turn of a loop: when it began, and who asked."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.net import turn
from aiodist.net.turn import PlainTurnClock, Turn


class Loop:
    """Notes what is queued."""

    def __init__(self) -> None:
        self.queued: list[Any] = []

    def call_soon(self, function: Any, context: Any = None) -> None:
        self.queued.append(function)

    def is_closed(self) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_asking_queues_one_callback_a_turn(clock: SimpleNamespace) -> None:
    loop: Any = Loop()
    present = Turn(loop)
    assert not any(present.overdue(3600) for _ in range(100))
    assert len(loop.queued) == 1
    loop.queued[0]()
    assert not present.overdue(3600)
    assert len(loop.queued) == 2


def test_it_is_overdue_once_it_lasts_too_long(clock: SimpleNamespace) -> None:
    loop: Any = Loop()
    present = Turn(loop)
    assert not present.overdue(0.001)
    clock.now += 0.0011
    assert present.overdue(0.001)
    assert not present.overdue(0.002)
    loop.queued[-1]()
    assert not present.overdue(0.001)


class PlainTurn(PlainTurnClock):
    """A turn without the engine, of a clock that is set."""

    def _begin(self) -> float:
        now: float = vars(turn)["time"].monotonic()
        self.since = now
        return now


def test_all_who_poll_in_a_turn_have_one_budget(clock: SimpleNamespace) -> None:
    present = PlainTurn()
    assert present.start_polling(50e-6) == pytest.approx(clock.now + 50e-6, abs=1e-9)
    clock.now += 20e-6
    present.stop_polling()
    clock.now += 0.5  # of work, which is no polling
    assert present.start_polling(50e-6) == pytest.approx(clock.now + 30e-6, abs=1e-9)
    clock.now += 30e-6
    present.stop_polling()
    assert present.start_polling(50e-6) == pytest.approx(clock.now, abs=1e-9)
    present.since = None
    assert present.start_polling(50e-6) == pytest.approx(clock.now + 50e-6, abs=1e-9)


def test_a_turn_that_polls_counts_its_seconds_with_the_engine_and_without() -> None:
    loop: Any = Loop()
    for present in (Turn(loop), PlainTurn()):
        first = present.start_polling(1000)
        began = present.since
        assert began is not None
        assert first >= began + 1000
        while time.monotonic() - began < 0.005:
            pass
        present.stop_polling()
        assert present.start_polling(1000) - time.monotonic() <= 1000 - 0.004
        present.since = None
        assert present.start_polling(1000) - time.monotonic() > 1000 - 0.004


async def test_a_loop_has_one_turn() -> None:
    loop = asyncio.get_running_loop()
    assert Turn.of(loop) is Turn.of(loop)


async def test_who_asks_alone_in_a_turn_is_told_so() -> None:
    present = Turn.of(asyncio.get_running_loop())
    await asyncio.sleep(0)
    one, two = object(), object()
    assert present.only(one)
    assert present.only(one)
    assert not present.only(two)
    await asyncio.sleep(0)
    assert present.only(two)
