"""What the NCCL groups of one device have in common: the launch threads, and the end of all when one breaks.

A kernel that waits for a lost peer can hold up any call that NCCL makes for another communicator of the
device, the abort of that one, too. So they are aborted all at once, each in a thread of its own, and the
groups that had no part in what went wrong are told that they have ended as well. Who forms groups afterwards
gets other launch threads: the old ones may hang in NCCL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.backends.cuda.launcher import Launcher

LIMIT = 2.0
"""Seconds that an abort may take."""
_GRACE = 0.25  # seconds for the launch that is under way, as NCCL's calls and its abort do not mix well


class Stoppable(Protocol):
    """A lane."""

    def abort(self) -> None: ...
    def close(self) -> None: ...
    def join(self, seconds: float) -> bool: ...


class Member(Protocol):
    """The engine of a group."""

    def collapsed(self, why: str) -> None:
        """Its communicators are being aborted for another group's sake. From any thread."""


class NcclDevice:
    """See the module.

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
        self.collectives = Launcher(f"aiodist-nccl-launch-{index}")
        self.messages = Launcher(f"aiodist-nccl-messages-{index}")
        self.dead = False
        self._limit = limit
        self._lock = threading.Lock()
        self._members: set[Member] = set()
        self._lanes: list[Stoppable] = []
        self._quiet: list[Callable[[], None]] | None = []

    def adopt(self, lane: Stoppable) -> bool:
        """A new lane. False: too late, and the caller aborts it."""
        with self._lock:
            if not self.dead:
                self._lanes.append(lane)
            return not self.dead

    def join(self, member: Member) -> bool:
        """A group begins. False: too late."""
        with self._lock:
            if not self.dead:
                self._members.add(member)
            return not self.dead

    def leave(self, member: Member, lanes: Sequence[Stoppable]) -> bool:
        """A group has ended, well or not. Whether its lanes are still to be closed and destroyed."""
        with self._lock:
            self._members.discard(member)
            if self.dead:
                return False
            for lane in lanes:
                self._lanes.remove(lane)
            if not self._members:
                self.dead = True
                self.collectives.end()
                self.messages.end()
            return True

    def stop(self, member: Member, why: str, quiet: Callable[[], None]) -> None:
        """Abort all communicators of the device.

        Args:
            member: whose group has broken.
            why: for the other groups.
            quiet: called in a thread when nothing that was launched touches memory any more, or at the limit:
                then a kernel may still run that NCCL could not stop, on memory that is kept for it.
        """
        with self._lock:
            if self._quiet is None:
                quiet()
                return
            self._quiet.append(quiet)
            if self.dead:
                return
            self.dead = True
            others = self._members - {member}
        for other in others:
            other.collapsed(why)
        threading.Thread(target=self._stop, name=f"aiodist-nccl-stop-{self.index}", daemon=True).start()

    def _stop(self) -> None:
        until = time.monotonic() + self._limit
        launchers = self.collectives, self.messages
        for launcher in launchers:
            launcher.end()
        grace = min(until, time.monotonic() + _GRACE)
        for launcher in launchers:
            launcher.join(_left(grace))
        with self._lock:
            lanes = list(self._lanes)
        calm = at_once([lane.abort for lane in lanes], until)
        for launcher in launchers:
            calm &= launcher.join(_left(until))
        for lane in lanes:
            lane.close()
        for lane in lanes:
            calm &= lane.join(_left(until))
        if not calm:
            _never_freed.extend(lanes)
        with self._lock:
            waiting, self._quiet = self._quiet or [], None
        for quiet in waiting:
            quiet()


def at_once(jobs: Sequence[Callable[[], None]], until: float) -> bool:
    """Run jobs in a thread each, until a time of the monotonic clock; whether all have ended."""
    threads = [threading.Thread(target=job, name="aiodist-nccl-abort", daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_left(until))
    return not any(thread.is_alive() for thread in threads)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0)


_never_freed: list[Stoppable] = []  # a kernel may run on their streams for ever
_devices: dict[int, NcclDevice] = {}
_lock = threading.Lock()


def enter(index: int, member: Member) -> NcclDevice:
    """The device, for a group that begins."""
    with _lock:
        device = _devices.get(index)
        if device is None or not device.join(member):
            device = _devices[index] = NcclDevice(index)
            device.join(member)
        return device
