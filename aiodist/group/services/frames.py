"""The hot half of a connection: what a turn of the loop sends leaves together, what comes is cut into frames.

The engine has the same (`_engine/calls.pyx`), and takes the usual frames itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiodist import _engine
from aiodist.net.wire.calls import Frames

_FEW = 16  # frames that leave together without asking whether they are a good part of all
_PART = 4  # that part: so both sides work at the same time, where many calls are under way


class PlainFrameEnd:
    """An end of a connection, in plain Python.

    Attributes:
        over: nothing is sent or taken any more.
        full: see `Connection`.
        together: frames that came together the last time.
        holds: what is sent leaves with others, at `flush`.
        matcher: None; with the engine, what takes usual frames.
    """

    def __init__(self) -> None:
        self.over = self.full = self.holds = False
        self.together = 0
        self.matcher: Any = None

    def set_up(
        self, call_soon: Callable[..., object], _bodies: dict[int, Any], _lanes: dict[int, Any]
    ) -> None:
        """Begin: nothing was sent, and nothing came.

        Args:
            call_soon: the loop's.
        """
        self._call_soon = call_soon
        self._out = bytearray()
        self._count = 0  # frames in it
        self._frames = Frames()

    def send(self, data: bytes, *, many: int = 0) -> None:
        """Send a small frame; where others may follow in this turn of the loop, with some of them.

        Args:
            many: calls that are under way.
        """
        if self.over:
            return
        self._out += data
        if not self.holds:
            if many < 2 and self.together < 2:  # several had answers together, and may ask again
                self.flush()
                return
            self.holds = True
            self._call_soon(self.flush)
        self._count += 1
        if self._count >= _FEW and self._count * _PART >= max(many, self.together):
            self._leave()  # the other side begins with these while the rest is made

    def flush(self) -> None:
        """Have all leave that is held."""
        self.holds = False
        self._leave()

    def forget_held(self) -> None:
        """Send nothing of what is held."""
        self.holds = False
        self._out.clear()

    def deliver(self, data: bytes) -> None:
        """Take the frames that are complete with `data`. `WireError` where it is none; then none is taken."""
        frames = self._frames.feed(data)
        self.together = len(frames)
        for kind, number, body in frames:
            if self.over:
                return
            self._frame(kind, number, body)

    def _leave(self) -> None:
        self._count = 0
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            self._write(data)

    def _frame(self, kind: int, number: int, body: bytes | bytearray) -> None:
        """Take one frame."""
        raise NotImplementedError

    def _write(self, data: bytes) -> None:
        """Write to the line."""
        raise NotImplementedError


FrameEnd = PlainFrameEnd
if not TYPE_CHECKING and _engine.compiled is not None:
    FrameEnd = _engine.compiled.FrameEnd
