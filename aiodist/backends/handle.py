"""What a Work does in the usual case, in plain Python: the reference of `_engine/handle.pyx`.

A process without the engine uses it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiodist import _engine
from aiodist.net.turn import Turn, TurnOfLoop

PENDING, DONE, FAILED = 0, 1, 2
"""The states of a Work."""


class PlainHandle:
    """The fields of a Work, how it is made, and its end.

    Args:
        issuer: what the group's Works have in common (`GroupState`).
        call: what the ranks agree on.
        held: the caller passed `async_op=True`.
        driver: what brings the operation on while it is awaited.
        result: what the operation gives if it ends well, where that is known.
        seq: the number, where `call` is only one like it.
        noted: how the operation is written down (`Track.note`); None: it is made of others, which are.
    """

    __slots__ = (
        "_awaited",  # also where the caller passed async_op=True: dropping it is no mistake then
        "_call",
        "_callbacks",
        "_completion",  # on a device
        "_driver",
        "_error",
        "_followed",  # by a callback: dropping it is no mistake, but a block waits for it all the same
        "_held_back",  # numbered, and not begun: inside coalesce()
        "_issuer",
        "_limit",  # the caller's timeout, where the operation was started with one before it was in flight
        "_noted",
        "_result",
        "_seq",
        "_state",
        "_steps",  # of the tasks that were made of it and run now
        "_take_back",
        "_unheld",  # an await that ends without the result takes a receive back
        "_untold",  # closing its group has ended it, and nobody has asked
        "_waiters",
    )

    def __init__(
        self,
        issuer: Any,
        call: Any,
        held: bool,
        driver: Any = None,
        result: Any = None,
        seq: int | None = None,
        noted: Any = None,
    ) -> None:
        self._issuer, self._call, self._driver, self._result = issuer, call, driver, result
        self._seq, self._noted = seq, noted
        self._unheld, self._awaited = not held, held
        self._state = PENDING
        self._error: BaseException | None = None
        self._waiters: Any = None
        self._callbacks: Any = None
        self._completion: Any = None
        self._take_back: Any = None
        self._limit: float | None = None
        self._steps: Any = None
        self._held_back = self._followed = self._untold = False

    def __await__(self) -> Generator[Any, None, Any]:
        return self._await_on()

    def _await_on(self) -> Generator[Any, None, Any]:
        raise NotImplementedError

    def _finish(self, result: Any) -> None:
        """End the operation well. Called once, on the loop."""
        if self._state == PENDING:
            self._result = result
            self._state = DONE
            self._driver = None  # users keep handles: they must not keep the group's memory
            if self._waiters is not None or self._callbacks is not None:
                self._wake()

    def _wake(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        if not (self._awaited or self._followed) or self._untold:
            self._is_dropped()

    def _is_dropped(self) -> None:
        raise NotImplementedError


class PlainIssuer:
    """The part of what a group's Works share that an await asks for: thread, running loop, turn."""

    __slots__ = ("running", "thread", "turn")

    thread: int
    running: Any
    turn: Any


if TYPE_CHECKING:
    Handle = PlainHandle
    Issuer = PlainIssuer
else:
    Handle = PlainHandle if _engine.compiled is None else _engine.compiled.Handle
    Issuer = PlainIssuer if _engine.compiled is None else _engine.compiled.Issuer

    if _engine.compiled is not None:

        class EngineTurn(TurnOfLoop, _engine.compiled.TurnClock):
            """The turn of a loop, whose hot half is the engine's."""

        Turn.kind = EngineTurn
