"""What is in flight: deadlines, the stall clock and draining, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import GroupAborted
from aiodist.base.types import Call, Kind
from aiodist.group import deadlines as flight
from aiodist.group.deadlines import FEW, MOST, PATIENCE, REMEMBERED, SHARE, STALL, Flight
from aiodist.testing.clock import run_virtual
from tests.observe.recorder.made import a_track


class Scene:
    """A flight that notes who stalled and who expired, and when."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stalled: list[tuple[int, float]] = []
        self.expired: list[tuple[int, float, float]] = []
        self.late: list[float] = []
        self.flight = Flight(self.loop, self.stall, self.expire)

    def stall(self, operation: Operation) -> None:
        self.stalled.append((operation.call.seq, round(self.loop.time(), 6)))

    def expire(self, operation: Operation, timeout: float, late: float) -> None:
        self.late.append(late)
        self.expired.append((operation.call.seq, timeout, round(self.loop.time(), 6)))
        self.flight.fail_all(GroupAborted(0, "expired"))

    def issue(self, seq: int, timeout: float, kind: Kind = Kind.all_reduce) -> Operation:
        call = Call(kind, seq, np.dtype(np.float32), (3,))
        group: Any = type("Group", (), {"name": "world", "epoch": 0})
        work: Work[Any] = Work(GroupState(self.loop, a_track(), None, lambda: group, "world"), call, True)
        operation = Operation(call, work, None, None, None, self.flight.ended)
        self.flight.issue(operation, timeout)
        return operation


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def test_operation_that_ends_in_time_sets_nothing_off() -> None:
    async def main() -> None:
        scene = Scene()
        operation = scene.issue(0, 5)
        assert len(scene.flight) == 1
        await asyncio.sleep(STALL / 2)
        operation.succeed()
        assert len(scene.flight) == 0
        await asyncio.sleep(20)
        assert not scene.stalled and not scene.expired

    virtual(main())


def test_stall_is_asked_about_less_and_less_often_until_the_deadline() -> None:
    async def main() -> None:
        scene = Scene()
        operation = scene.issue(0, 30)
        await asyncio.sleep(40)
        times = [when for _, when in scene.stalled]
        gaps = np.diff([0, *times])
        assert gaps == pytest.approx([STALL * PATIENCE**k for k in range(len(gaps))])
        assert len(times) == 4
        assert scene.expired == [(0, 30, 30)]
        assert isinstance(operation.work.exception(), GroupAborted)

    virtual(main())


def test_of_thousands_the_most_urgent_are_asked_about_first_and_all_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flight, "thread_time", lambda: 0.0)  # looking costs no virtual time

    async def main() -> None:
        scene = Scene()
        operations = [scene.issue(seq, 1000 - seq) for seq in range(500)]
        await asyncio.sleep(STALL * 1.5)
        assert scene.stalled == [(seq, STALL) for seq in range(499, 499 - MOST, -1)]
        await asyncio.sleep(STALL * 500 / MOST * 3)
        assert {seq for seq, _ in scene.stalled} == set(range(500))
        times = [when for _, when in scene.stalled]
        assert all(late - early >= STALL - 1e-6 for early, late in zip(times, times[MOST:], strict=False))
        for operation in operations:
            operation.succeed()

    virtual(main())


def test_where_others_end_meanwhile_only_the_most_urgent_are_asked_about() -> None:
    """Thousands that wait for their turn do not stall."""

    async def main() -> None:
        scene = Scene()
        operations = [scene.issue(seq, 1000) for seq in range(500)]
        for tenth in range(10):
            operations[tenth].succeed()
            await asyncio.sleep(STALL)
        assert 0 < len(scene.stalled) <= FEW * 11
        assert {seq for seq, _ in scene.stalled[:FEW]} == {1, 2}
        scene.stalled.clear()
        await asyncio.sleep(STALL * 1.5)  # and nothing ends
        assert len(scene.stalled) >= MOST
        for operation in operations[10:]:
            operation.succeed()

    virtual(main())


def test_the_timer_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is in flight, and however long a look at it takes."""

    async def main() -> None:
        scene = Scene()
        monkeypatch.setattr(flight, "thread_time", scene.loop.time)
        note, times = scene.stall, []

        def slow(operation: Operation) -> None:
            note(operation)
            times.append(scene.loop.time())
            block(0.01)

        scene.flight._stalled = slow
        operations = [scene.issue(seq, 1000) for seq in range(500)]
        await asyncio.sleep(60)
        assert len(times) * 0.01 <= 60 / SHARE + MOST * 0.01
        for operation in operations:
            operation.succeed()

    virtual(main())


def test_a_process_that_was_stopped_while_the_timer_ran_has_deadlines_all_the_same() -> None:
    async def main() -> None:
        scene = Scene()
        note = scene.stall

        def stopped(operation: Operation) -> None:
            note(operation)
            scene.flight._stalled = note
            block(30)

        scene.flight._stalled = stopped
        scene.issue(0, 60)
        await asyncio.sleep(70)
        assert [seq for seq, _, _ in scene.expired] == [0]
        assert scene.expired[0][2] <= 60 + 30

    virtual(main())


def test_short_timeout_asks_half_way_so_that_the_error_can_say_who() -> None:
    async def main() -> None:
        scene = Scene()
        scene.issue(0, 0.05)
        await asyncio.sleep(1)
        assert scene.stalled == [(0, 0.025)]
        assert scene.expired == [(0, 0.05, 0.05)]

    virtual(main())


def test_the_first_deadline_counts_whatever_the_order_of_issue() -> None:
    async def main() -> None:
        scene = Scene()
        works = [scene.issue(0, 100).work, scene.issue(1, 2).work, scene.issue(2, 50).work]
        await asyncio.sleep(3)
        assert scene.expired == [(1, 2, 2)]  # and what it set off ended the others
        assert all(work.done() for work in works)
        await asyncio.sleep(200)
        assert len(scene.expired) == 1

    virtual(main())


def test_later_shorter_operation_moves_the_timer_forward() -> None:
    async def main() -> None:
        scene = Scene()
        scene.issue(0, 100)
        await asyncio.sleep(5)
        scene.issue(1, 0.01)
        await asyncio.sleep(0.02)
        assert scene.expired == [(1, 0.01, 5.01)]

    virtual(main())


def block(seconds: float) -> None:
    """The loop's thread is in a long step."""
    loop: Any = asyncio.get_running_loop()
    loop._clock.now += seconds


def test_what_has_ended_while_the_loop_did_not_turn_has_not_expired() -> None:
    async def main() -> None:
        scene = Scene()
        operation = scene.issue(0, 3)
        loop = scene.loop
        block(10)
        # A loop may run its timers first; and what ends the operation takes some turns.
        loop.call_later(0, loop.call_soon, loop.call_soon, operation.succeed)
        await asyncio.sleep(60)
        assert operation.work.done() and not scene.expired

    virtual(main())


def test_deadline_that_passed_while_the_loop_did_not_turn_is_moved_once_and_says_so() -> None:
    async def main() -> None:
        scene = Scene()
        scene.issue(0, 3)
        await asyncio.sleep(1)
        block(9)
        await asyncio.sleep(60)
        assert scene.stalled[-1][1] >= 10  # it was asked about anew, whatever had been said before
        assert scene.expired == [(0, 3, 13)]
        assert scene.late == pytest.approx([10 - STALL * (1 + PATIENCE + PATIENCE**2)], abs=2)

    virtual(main())


@pytest.mark.parametrize("busy", [0.051, 0.2, 1.0, 2.9])
def test_all_moves_of_a_deadline_together_are_one_timeout_at_most(busy: float) -> None:
    """And what is told is the longest time for which the loop did not turn."""

    async def main() -> None:
        scene = Scene()
        loop: Any = asyncio.get_running_loop()
        scene.issue(0, 3)
        turned = 0.0
        while not scene.expired:
            before = loop.time()
            await asyncio.sleep(0.05)
            turned += loop.time() - before
            block(busy)
        assert turned <= 2 * 3 + 0.3
        assert scene.late[0] <= busy + 0.06

    virtual(main())


def test_loop_that_never_turns_in_time_does_not_move_deadlines_for_ever() -> None:
    async def main() -> None:
        scene = Scene()
        scene.issue(0, 3)
        for _ in range(10):
            block(2)
            await asyncio.sleep(0.001)
        assert [seq for seq, _, _ in scene.expired] == [0]
        assert scene.expired[0][2] <= 12

    virtual(main())


def test_expiry_is_told_once_while_the_group_takes_time_to_end() -> None:
    async def main() -> None:
        scene = Scene()
        told: list[int] = []
        scene.flight = Flight(scene.loop, scene.stall, lambda operation, *_: told.append(operation.call.seq))
        scene.issue(0, 1)
        scene.issue(1, 1)
        turns = 0
        while scene.loop.time() < 3:  # a thread still holds the buffers: nothing has failed yet
            await asyncio.sleep(0.5)
            turns += 1
            assert turns < 20
        assert told == [0, 1]
        scene.flight.fail_all(GroupAborted(0, "now"))

    virtual(main())


def test_drain() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.flight.drain()
        operations = [scene.issue(seq, 60) for seq in range(3)]
        first, second = (asyncio.create_task(scene.flight.drain()) for _ in range(2))
        for operation in operations[:2]:
            operation.succeed()
            await asyncio.sleep(0)
        assert not first.done()
        second.cancel()
        operations[2].succeed()
        await first
        assert second.cancelled() or not second.done()

    virtual(main())


def test_drain_waits_for_what_is_issued_meanwhile() -> None:
    async def main() -> None:
        scene = Scene()
        first = scene.issue(0, 60)
        task = asyncio.create_task(scene.flight.drain())
        await asyncio.sleep(0)
        first.succeed()
        second = scene.issue(1, 60)
        await asyncio.sleep(1)
        assert not task.done()
        second.succeed()
        await task

    virtual(main())


def test_failure_ends_draining_and_the_timer() -> None:
    async def main() -> None:
        scene = Scene()
        works = [scene.issue(seq, 60).work for seq in range(3)]
        task = asyncio.create_task(scene.flight.drain())
        await asyncio.sleep(0)
        scene.flight.fail_all(GroupAborted(1, "enough"))
        await task
        for seq, work in enumerate(works):
            error = work.exception()
            assert isinstance(error, GroupAborted)
            assert error.seq == seq
        await asyncio.sleep(100)
        assert not scene.stalled

    virtual(main())


def test_what_is_in_flight_is_known_however_many_came_after_it() -> None:
    async def main() -> None:
        scene = Scene()
        operations = [scene.issue(seq, 60) for seq in range(3 * REMEMBERED)]
        message = scene.issue(3 * REMEMBERED, 60, Kind.send)
        calls = [scene.flight.call(seq) for seq in range(3 * REMEMBERED + 1)]
        assert calls == [*(operation.call for operation in operations), None]
        for operation in (*operations, message):
            operation.succeed()
        assert scene.flight.call(0) is None

    virtual(main())


def test_no_more_is_remembered_where_other_numbers_went_another_way() -> None:
    async def main() -> None:
        scene = Scene()
        for seq in range(0, 6 * REMEMBERED, 3):  # those in between took the fast path
            scene.issue(seq, 60).succeed()
        last = 6 * REMEMBERED - 3
        known = [seq for seq in range(last + 1) if scene.flight.call(seq) is not None]
        assert known == list(range(last - 3 * (REMEMBERED - 1), last + 1, 3))
        await asyncio.sleep(100)

    virtual(main())


def test_recent_collectives_are_remembered_and_messages_are_not() -> None:
    async def main() -> None:
        scene = Scene()
        for seq in range(REMEMBERED + 10):
            scene.issue(seq, 60).succeed()
        assert scene.flight.call(9) is None
        assert [scene.flight.call(seq) is not None for seq in (10, REMEMBERED + 9, REMEMBERED + 10)] == [
            True,
            True,
            False,
        ]
        other = Scene()
        message, collective = other.issue(0, 60, Kind.send), other.issue(7, 60)
        assert other.flight.call(0) is None
        assert other.flight.collectives() == [7]
        message.succeed()
        collective.succeed()
        assert other.flight.collectives() == []
        for each in (scene, other):
            each.flight.close()

    virtual(main())
