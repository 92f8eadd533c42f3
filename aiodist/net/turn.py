"""The present turn of an event loop: since when it lasts, and so how long it may poll (law 7)."""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from typing import ClassVar

_NO_CONTEXT = contextvars.Context()  # the callback does not serve the first asker alone


class PlainTurnClock:
    """The time that the present turn has taken, and that of polling in it: the hot half, in plain Python.

    The engine has the same (`_engine/handle.pyx`).

    Attributes:
        since: when the turn began (time.monotonic); None: nobody has asked since the loop came round.
    """

    __slots__ = ("_poll_began", "_polled", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._poll_began = 0.0
        self._polled = 0.0  # seconds, in this turn

    @property
    def since(self) -> float | None:
        return self._since

    @since.setter
    def since(self, value: float | None) -> None:
        self._since = value
        if value is None:
            self._polled = 0.0

    def start_polling(self, limit: float) -> float:
        """The deadline (time.monotonic) of the caller's poll, where all of this turn may for `limit` seconds.

        What counts is the time between this and `stop_polling`: a turn that carries out many operations polls
        for each a little.
        """
        self._poll_began = now = self._begin() if self._since is None else time.monotonic()
        return now + limit - self._polled

    def stop_polling(self) -> None:
        """End a poll: the caller has what it waits for, or has given up for this turn."""
        self._polled += time.monotonic() - self._poll_began

    def _begin(self) -> float:
        raise NotImplementedError


class TurnOfLoop:
    """The beginning and the end of a turn: it begins when somebody asks, and ends when the loop comes round.

    The base of `Turn`, and of the class that takes its place with the engine.
    """

    since: float | None
    _asker: object
    _loop: weakref.ref[asyncio.AbstractEventLoop]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        # Weak: the table that holds this must not keep the loop.
        self._loop = weakref.ref(loop)
        self._asker = None

    def overdue(self, limit: float) -> bool:
        """Whether the loop has not turned for longer than `limit` seconds: the asker ought to yield to it."""
        since = self.since
        if since is None:
            self._begin()
            return False
        return time.monotonic() - since > limit

    def only(self, asker: object) -> bool:
        """Whether nobody else asked in this turn; what several ask is better sent together."""
        if self._asker is asker:
            return True
        if self._asker is not None:
            return False
        self._asker = asker
        if self.since is None:
            self._begin()
        return True

    def _begin(self) -> float:
        now = time.monotonic()
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            self.since = now
            loop.call_soon(self._turned, context=_NO_CONTEXT)
        return now

    def _turned(self) -> None:
        self.since = None
        self._asker = None


class Turn(TurnOfLoop, PlainTurnClock):
    """The time for which a loop has not turned. One exists for each loop (`Turn.of`).

    A turn begins when it is first asked for, and is over when the loop comes round. A callback notices that,
    which is queued once a turn, so the price of asking is one clock reading.
    """

    kind: ClassVar[type[Turn]]
    """The class of the turns that `of` makes: another one with the engine (`backends/handle.py`)."""

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> Turn:
        """The one of a loop. Where the loop has one of another class, from before the engine was there, its
        users keep that."""
        turn = _turns.get(loop)
        if turn is None or type(turn) is not Turn.kind:
            turn = _turns[loop] = Turn.kind(loop)
        return turn


Turn.kind = Turn
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = weakref.WeakKeyDictionary()
