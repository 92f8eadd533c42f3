"""The launch threads that the NCCL groups of one device share, and the end of all when one breaks.

NCCL asks that one thread at a time gives a device work, for whichever communicator: a lock sees to that.
Its holder must not wait for other members, or a message that they wait for could not be launched. So
communicators are connected when they are made, and not in their first operations; what direct exchanges
need is connected in their first one, with the lock, when all members have come there (`engine`).

A kernel that waits for a lost peer can hold up any call that NCCL makes for another communicator of the
device, the abort of that one, too. So they are aborted all at once, each in a thread of its own, and the
groups that had no part in what went wrong are told that they have ended as well. Groups that are formed
afterwards get other launch threads: the old ones may hang in NCCL.

For the same reason the destruction of a communicator begins when none of the device's operations is under
way. It goes on in a thread, until peers on this host destroy theirs, and what is launched meanwhile does not
wait for it: that cannot be had, as peers may come late. A program that always has an operation under way on
the device keeps the communicators of the groups that it has closed until the last one ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from aiodist.backends.nccl.communicators import destroy_later
from aiodist.backends.nccl.lane import Lane
from aiodist.backends.threads import Worker

LIMIT = 2.0
"""Seconds that an abort may take."""
_GRACE = 1.0  # seconds of them for a thread that is inside NCCL: an abort frees what it works on


class DeviceMember(Protocol):
    """The engine of a group."""

    def collapsed(self, why: str) -> None:
        """Note that the communicators are being aborted for another group's sake. From any thread."""


class NcclDevice:
    """One device, shared by its NCCL groups; see the module.

    Args:
        index: of the CUDA device.
        limit: seconds that an abort may take.

    Attributes:
        collectives: launches them, for all groups, in the order of issue.
        messages: launches these, which must not wait for a collective: on another rank they may come first.
        dead: nothing is launched any more.
    """

    def __init__(self, index: int, limit: float = LIMIT) -> None:
        self.index = index
        self.collectives = Worker(f"aiodist-nccl-launch-{index}")
        self.messages = Worker(f"aiodist-nccl-messages-{index}")
        self.dead = False
        self._limit = limit
        self._lock = threading.Lock()
        self._issuing = threading.Lock()
        self._members: set[DeviceMember] = set()
        self._lanes: list[Lane] = []
        self._closed: list[Lane] = []  # of them: of groups that have ended, to be destroyed
        self._released: list[Callable[[], None]] | None = []

    def adopt(self, lane: Lane) -> bool:
        """Take a new lane → whether it could; False: too late, and the caller aborts it."""
        with self._lock:
            if not self.dead:
                self._lanes.append(lane)
            return not self.dead

    def join(self, member: DeviceMember) -> bool:
        """Take a group that begins → whether it could; False: too late."""
        with self._lock:
            if not self.dead:
                self._members.add(member)
            return not self.dead

    # ── launching ────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def issuing(self, lane: Lane, connecting: bool = False) -> Iterator[Any]:
        """A lane's communicator, to be given work. In a launch thread.

        Args:
            connecting: the call waits for the launch threads of other members, which are about to make it.

        Raises:
            ConnectionAbortedError: it is aborted.
        """
        with self._issuing, lane.inside(connecting) as communicator:
            yield communicator

    def began(self, lane: Lane) -> None:
        """Note that work will be given to the device."""
        with self._lock:
            lane.under_way += 1

    def ended(self, lane: Lane) -> None:
        """Note that the device has done the work."""
        with self._lock:
            lane.under_way -= 1
            gone = [] if lane.under_way else self._take_closed()
        destroy_later([lane.destroy for lane in gone])

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────

    def leave(self, member: DeviceMember, lanes: Sequence[Lane]) -> None:
        """Let go of a group that has ended, well or not. What its lanes hold is given back once nothing is
        under way."""
        with self._lock:
            self._members.discard(member)
            if self.dead:
                return
            self._closed += lanes
            if not self._members:
                self.dead = True
                self.collectives.end()
                self.messages.end()
            gone = self._take_closed()
        for lane in lanes:
            lane.close()
        destroy_later([lane.destroy for lane in gone])

    def _take_closed(self) -> list[Lane]:
        """Take what can be destroyed now, if anything. Under the lock."""
        if not self._closed or (self._members and any(lane.under_way for lane in self._lanes)):
            return []
        gone, self._closed = self._closed, []
        for lane in gone:
            self._lanes.remove(lane)
        return gone

    def stop(self, member: DeviceMember, why: str, released: Callable[[], None]) -> None:
        """Abort all communicators of the device.

        Args:
            member: whose group has broken.
            why: for the other groups.
            released: called in a thread when nothing that was launched touches memory any more, or at the
                limit: then a kernel may still run that NCCL could not stop, on memory that is kept for it.
        """
        with self._lock:
            if self._released is None:
                released()
                return
            self._released.append(released)
            if self.dead:
                return
            self.dead = True
            self._closed = []  # they are aborted with the others
            others = self._members - {member}
        for other in others:
            other.collapsed(why)
        threading.Thread(target=self._stop, name=f"aiodist-nccl-stop-{self.index}", daemon=True).start()

    def _stop(self) -> None:
        until = time.monotonic() + self._limit
        launchers = self.collectives, self.messages
        for launcher in launchers:
            launcher.end()
        with self._lock:
            lanes = list(self._lanes)
        patience = min(_GRACE, self._limit / 2)
        calm = at_once([partial(lane.abort, patience) for lane in lanes], until)
        for launcher in launchers:
            calm &= launcher.join(_left(until))
        for lane in lanes:
            lane.close()
        for lane in lanes:
            calm &= lane.join(_left(until))
        if not calm:
            _never_freed.extend(lanes)
        with self._lock:
            waiting, self._released = self._released or [], None
        for released in waiting:
            released()


def at_once(jobs: Sequence[Callable[[], None]], until: float) -> bool:
    """Run jobs in a thread each, until a time of the monotonic clock → whether all have ended."""
    threads = [threading.Thread(target=job, name="aiodist-nccl-abort", daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_left(until))
    return not any(thread.is_alive() for thread in threads)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0)


_never_freed: list[Lane] = []  # a kernel may run on their streams for ever
_devices: dict[int, NcclDevice] = {}
_lock = threading.Lock()


def enter(index: int, member: DeviceMember) -> NcclDevice:
    """The device, for a group that begins."""
    with _lock:
        device = _devices.get(index)
        if device is None or not device.join(member):
            device = _devices[index] = NcclDevice(index)
            device.join(member)
        return device
