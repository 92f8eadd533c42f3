"""Signs of life over the control links: the shell around `liveness`, with the timer, pings and looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aiodist.base.sanitize import one_line
from aiodist.group.control.clocks import Clocks, Stamp
from aiodist.group.control.liveness import Blocked, Liveness, LoopState, Patience
from aiodist.group.control.messages import PING, Message, Say
from aiodist.observe.recorder import Recorder

IsStopped = Callable[[], bool | None]
"""Whether a process of this host is stopped; None where that cannot be seen (any more)."""


class Plane(Protocol):
    """The control plane, as this module needs it."""

    rank: int

    def ping(self, rank: int, message: bytes) -> None:
        """Send a neighbour bytes that are no `Message`."""

    def hear(self) -> None:
        """Take in all that the neighbours have written."""

    def lose(self, rank: int, cause: str) -> None:
        """Give up a rank."""

    def flood(self, say: Say, *body: Any) -> None:
        """Tell everybody."""

    def warn(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """Tell those who wait that these loops have not turned for long."""


class Signs:
    """The signs of life of this process and its neighbours. Runs until it is closed.

    Args:
        plane: whose links are used.
        loop: its timer and clock; it runs, or is about to.
        patience: the limits.
        recorder: is told how far the neighbours' clocks are apart from its own.

    Attributes:
        turns: counts the beats of the loop; a watchdog, in its thread, looks whether it changes.
        blocked: whose loops do not turn, as far as is known.
    """

    def __init__(
        self,
        plane: Plane,
        loop: asyncio.AbstractEventLoop,
        patience: Patience,
        recorder: Recorder | None = None,
    ) -> None:
        self.turns = 0
        self._plane = plane
        self._loop = loop
        self._liveness = Liveness(patience, loop.time())
        self.blocked: Mapping[int, Blocked] = self._liveness.blocked
        self._is_stopped: dict[int, IsStopped] = {}
        self._clocks = None if recorder is None else Clocks(recorder.clock)
        self._tell = _ignore if recorder is None else recorder.clocks
        self._was_blocked = False  # as the others believe: they have to be told that it is over
        self._closed = False
        self._timer = loop.call_later(patience.heartbeat, self._beat)

    def close(self) -> None:
        """Stop the timer."""
        self._closed = True
        self._timer.cancel()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────

    def see(self, rank: int, is_stopped: IsStopped) -> None:
        """Have the process of a rank checked."""
        self._is_stopped[rank] = is_stopped
        self._liveness.visible.add(rank)

    def attach(self, rank: int) -> None:
        """Note that a link to a neighbour is up."""
        self._liveness.attach(rank, self._loop.time())

    def torn(self, rank: int) -> None:
        """Note that a link to a neighbour has ended, and the neighbour has not."""
        self._liveness.detach(rank)

    def detach(self, rank: int) -> None:
        """Note that a rank is lost, or has left."""
        self._is_stopped.pop(rank, None)
        self._liveness.visible.discard(rank)
        self._liveness.detach(rank)

    def heard(self, neighbour: int, message: Message | None) -> None:
        """Note a message from a neighbour; None: a ping."""
        if message is not None and _is_watchdogs(neighbour, message):
            self._liveness.lives(neighbour, self._loop.time())
        else:
            self._liveness.turned(neighbour, self._loop.time())

    def compare(self, neighbour: int, stamp: Stamp) -> None:
        """Take the times of a neighbour's ping that has just come."""
        if self._clocks is not None:
            self._clocks.take(neighbour, stamp)

    def learn(self, message: Message) -> None:
        """Take a message that tells what a loop does."""
        rank, state, millis, where = message.body
        if rank == self._plane.rank:
            self._was_blocked = True
        else:
            seconds = max(millis, 0) / 1000
            where = one_line(where, MAX_WHERE)
            self._liveness.learn(rank, LoopState(state), seconds, where, self._loop.time())

    def confess(self) -> None:
        """Note that this process's watchdog has told that the loop does not turn. Called in its thread."""
        self._was_blocked = True

    # ── what is known ────────────────────────────────────────────────────────────────────────────────

    def silence(self, rank: int) -> float | None:
        """Seconds since a rank's last sign of life; see `Liveness.silence`."""
        return self._liveness.silence(rank, self._loop.time())

    def quiet(self, rank: int) -> bool:
        """Whether a linked rank's loop gave no sign for longer than its pings may take (`Liveness.quiet`)."""
        return self._liveness.quiet(rank, self._loop.time())

    def describe(self) -> dict[int, str]:
        """The ranks whose loops do not turn, as far as is known, each in words."""
        now = self._loop.time()
        return {rank: blocked.describe(now) for rank, blocked in self.blocked.items()}

    # ── the timer ────────────────────────────────────────────────────────────────────────────────────

    def _beat(self) -> None:
        loop, liveness = self._loop, self._liveness
        self.turns += 1
        self._timer = loop.call_later(liveness.patience.heartbeat, self._beat)
        if self._was_blocked:
            self._was_blocked = False
            self._plane.flood(Say.blocked, self._plane.rank, int(LoopState.runs), 0, "")
        for rank in liveness.tick(loop.time()):
            self._plane.ping(rank, PING if self._clocks is None else self._clocks.ping(rank))
        if self._clocks is not None and (self.turns < _EARLY or self.turns % _TOLD == 0):
            self._tell([(rank, *offset) for rank, offset in self._clocks.known()])
        for rank in liveness.unsure():
            stopped = self._is_stopped[rank]()
            if stopped is not None:
                liveness.checked(rank, stopped)
        if liveness.overdue() or liveness.news(loop.time()):
            self._plane.hear()
        for rank, cause in liveness.overdue().items():
            self._plane.lose(rank, cause)
        if self._closed:  # it heard that it was given up
            return
        for rank, state, seconds in liveness.news(loop.time()):
            self._plane.flood(Say.blocked, rank, int(state), round(seconds * 1000), "")
            liveness.learn(rank, state, seconds, "", loop.time())
        now, least = loop.time(), liveness.patience.warn_after
        long = {rank: blocked for rank, blocked in self.blocked.items() if blocked.seconds(now) >= least}
        if long:
            self._plane.warn(long, now)


_EARLY, _TOLD = 20, 8
"""Beats at which it is told how far clocks are apart: all of the first, then each eighth."""

MAX_WHERE = 200
"""Characters of a place in a user's program."""


def _ignore(_: object) -> None: ...


def _is_watchdogs(neighbour: int, message: Message) -> bool:
    """Whether this is a message of a neighbour's watchdog, which says nothing for its loop."""
    return (
        message.say is Say.blocked
        and message.origin == neighbour
        and message.body[:2] == (neighbour, LoopState.blocked)
    )
