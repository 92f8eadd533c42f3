"""An alarm rings once, at the time to which it was set last, and says how late it was."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from aiodist.net.alarm import Alarm
from aiodist.testing import run_virtual


def rung(plan: Callable[[Alarm], Awaitable[object]]) -> list[float]:
    """The times at which an alarm rings while a plan is carried out, and in the ten seconds after that."""
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        alarm = Alarm(loop, lambda: times.append(loop.time()))
        await plan(alarm)
        await asyncio.sleep(10)

    run_virtual(main())
    return times


def test_it_rings_once_at_its_time() -> None:
    async def plan(alarm: Alarm) -> None:
        alarm.set(3.0)
        assert alarm.at == 3.0

    assert rung(plan) == [3.0]


def test_the_last_time_counts() -> None:
    async def plan(alarm: Alarm) -> None:
        alarm.set(1.0)
        alarm.set(2.0)

    assert rung(plan) == [2.0]


def test_an_earlier_time_counts_and_a_later_one_does_not() -> None:
    async def plan(alarm: Alarm) -> None:
        for at in (3.0, 2.0, 4.0, math.inf):
            alarm.by(at)
        assert alarm.at == 2.0
        await asyncio.sleep(3)
        assert alarm.at == math.inf
        alarm.by(5.0)

    assert rung(plan) == [2.0, 5.0]


def test_it_does_not_ring_where_it_is_not_set() -> None:
    async def plan(alarm: Alarm) -> None:
        alarm.set(1.0)
        alarm.set()
        assert alarm.at == math.inf

    assert rung(plan) == []


def test_one_that_is_stopped_never_rings() -> None:
    async def plan(alarm: Alarm) -> None:
        alarm.set(1.0)
        alarm.stop()
        alarm.set(2.0)
        alarm.by(3.0)
        alarm.stop()

    assert rung(plan) == []


def test_it_may_be_set_again_while_it_rings() -> None:
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def rings() -> None:
            times.append(loop.time())
            if len(times) < 3:
                alarm.by(loop.time() + 1.0)

        alarm = Alarm(loop, rings)
        alarm.set(1.0)
        await asyncio.sleep(10)

    run_virtual(main())
    assert times == [1.0, 2.0, 3.0]


def test_it_says_how_late_it_was() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        late: list[float] = []
        alarm = Alarm(loop, lambda: late.append(alarm.late))
        alarm.set(loop.time() + 1.0)
        await asyncio.sleep(2)
        alarm.set(loop.time() - 0.5)  # as if the loop had not turned since
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return late

    assert run_virtual(main()) == [0.0, 0.5]
