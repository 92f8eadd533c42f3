"""The end of all lanes at once within a limit: with jobs of plain Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from aiodist.backends.nccl import device as module
from aiodist.backends.nccl.device import NcclDevice, enter
from aiodist.backends.nccl.lane import Lane as RealLane


class Group:
    """The engine of a group."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def collapsed(self, why: str) -> None:
        self.told.append(why)


class Lane(RealLane):
    """One whose abort waits for a lock, and whose stream is through when it was aborted."""

    def __init__(self, free: bool = True, calm: bool = True) -> None:
        self.lock = threading.Event()
        self.aborted = threading.Event()
        self.closed = False
        self.under_way = 0
        self.destroyed = threading.Event()
        self.calm = calm
        if free:
            self.lock.set()

    def inside(self, connecting: bool = False) -> Any:
        return nullcontext(self)

    def abort(self, patience: float = 0.0) -> None:
        self.aborted.set()
        self.lock.wait()

    def close(self) -> None:
        self.closed = True

    def join(self, seconds: float) -> bool:
        return self.calm

    def destroy(self) -> None:
        self.destroyed.set()


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device of another test."""
    monkeypatch.setattr(module, "_devices", {})
    monkeypatch.setattr(module, "_never_freed", [])


def destroying() -> bool:
    """Whether anything is being destroyed, or was."""
    return any(thread.name == "aiodist-nccl-destroy" for thread in threading.enumerate())


def stopped(device: NcclDevice, member: Group, during: Callable[[], None] = lambda: None) -> None:
    """Stop a device, and return when it is released."""
    released = threading.Event()
    device.stop(member, "the other group broke", released.set)
    during()
    assert released.wait(30)


def test_all_lanes_are_aborted_at_once_and_other_groups_are_told() -> None:
    """Each abort goes on only when all others have begun: one after the other would never end."""
    broken, other = Group(), Group()
    device = enter(0, broken)
    assert enter(0, other) is device
    lanes = [Lane(free=False) for _ in range(4)]
    assert all(map(device.adopt, lanes))

    def free() -> None:
        for lane in lanes:
            assert lane.aborted.wait(30)
        for lane in lanes:
            lane.lock.set()

    stopped(device, broken, free)
    assert [lane.closed for lane in lanes] == [True] * 4
    assert (broken.told, other.told) == ([], ["the other group broke"])
    assert module._never_freed == []
    stopped(device, other)  # its own end: the device is released already
    assert broken.told == []


def test_abort_that_hangs_holds_nobody_up_and_its_lane_is_kept() -> None:
    device = NcclDevice(0, limit=0.05)
    group, hangs, good = Group(), Lane(free=False), Lane()
    device.join(group)
    device.adopt(hangs)
    device.adopt(good)
    stopped(device, group)
    assert good.aborted.is_set()
    assert module._never_freed == [hangs, good]
    hangs.lock.set()


def test_stream_that_never_drains_holds_nobody_up() -> None:
    device = NcclDevice(0, limit=0.05)
    group, lane = Group(), Lane(calm=False)
    device.join(group)
    device.adopt(lane)
    stopped(device, group)
    assert module._never_freed == [lane]


def test_launch_that_hangs_holds_nobody_up_and_the_next_group_has_another_thread() -> None:
    first, second = Group(), Group()
    device = module._devices[0] = NcclDevice(0, limit=0.05)
    assert enter(0, first) is device
    hangs, begun = threading.Event(), threading.Event()
    ran: list[str] = []

    def hang() -> None:
        begun.set()
        hangs.wait()

    device.collectives.submit(hang)
    assert begun.wait(30)
    stopped(device, first)
    again = enter(0, second)
    assert again is not device
    assert device.dead and not again.dead
    done = threading.Event()
    again.collectives.submit(done.set)
    assert done.wait(30)
    device.collectives.submit(lambda: ran.append("late"))
    hangs.set()
    assert device.collectives.join(30)
    assert ran == []  # after its end
    again.leave(second, [])
    assert again.collectives.join(30)


def test_what_comes_too_late_is_not_taken() -> None:
    device = NcclDevice(0)
    group = Group()
    assert device.join(group)
    stopped(device, group)
    assert not device.adopt(Lane())
    assert not device.join(Group())


def test_what_is_aborted_is_not_destroyed() -> None:
    first, second, lanes = Group(), Group(), [Lane(), Lane()]
    device = enter(0, first)
    enter(0, second)
    for lane in lanes:
        device.adopt(lane)
    device.began(lanes[1])
    device.leave(first, lanes[:1])  # waits for the other to end
    stopped(device, second)
    device.ended(lanes[1])
    device.leave(second, lanes[1:])
    assert all(lane.aborted.is_set() for lane in lanes)
    assert not any(lane.destroyed.is_set() for lane in lanes)


def test_thread_ends_with_the_last_group() -> None:
    first, second, lanes = Group(), Group(), [Lane(), Lane()]
    device = enter(1, first)
    enter(1, second)
    for lane in lanes:
        device.adopt(lane)
    device.leave(first, lanes[:1])
    assert not device.collectives.join(0.01)
    device.leave(second, lanes[1:])
    assert device.collectives.join(30)
    assert all(lane.closed and lane.destroyed.wait(30) for lane in lanes)
    third = Group()
    assert enter(1, third) is not device
    enter(1, third).leave(third, [])
    assert not any(lane.aborted.is_set() for lane in lanes)


def test_lane_of_a_group_that_has_ended_is_destroyed_when_nothing_is_under_way() -> None:
    first, second, lanes = Group(), Group(), [Lane(), Lane()]
    device = enter(0, first)
    enter(0, second)
    for lane in lanes:
        device.adopt(lane)
    device.began(lanes[1])
    device.began(lanes[1])
    device.leave(first, lanes[:1])
    device.ended(lanes[1])
    assert not destroying()
    device.ended(lanes[1])
    assert lanes[0].destroyed.wait(30)
    device.leave(second, lanes[1:])
    assert lanes[1].destroyed.wait(30)


def test_lane_is_destroyed_with_the_last_group_whatever_is_under_way() -> None:
    group, lane = Group(), Lane()
    device = enter(0, group)
    device.adopt(lane)
    device.began(lane)
    device.leave(group, [lane])
    assert lane.destroyed.wait(30)


def test_one_thread_at_a_time_is_given_a_communicator() -> None:
    device, lane = NcclDevice(0), Lane()
    inside: list[int] = []
    seen: list[int] = []

    def issue() -> None:
        with device.issuing(lane):
            inside.append(1)
            seen.append(len(inside))
            inside.pop()

    def often() -> None:
        for _ in range(200):
            issue()

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 800
    group = Group()
    device.join(group)
    device.leave(group, [])


def test_devices_have_nothing_to_do_with_each_other() -> None:
    one, other = Group(), Group()
    first, second = enter(0, one), enter(1, other)
    assert first is not second
    stopped(first, one)
    assert not second.dead
    assert other.told == []
    second.leave(other, [])
