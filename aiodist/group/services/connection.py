"""Frames over a line: what a turn of the loop sends leaves together, and a full line lets writers wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiodist.base.errors import Tampered, WireError
from aiodist.group.services.frames import FrameEnd
from aiodist.group.services.outbox import Outbox, Pieces
from aiodist.net.polling import Poller
from aiodist.net.wire.calls import PIECE, Says, frame
from aiodist.transport.line import Line

_PIECE, _GOODBYE, _ALTERED = (
    int(Says.PIECE),
    int(Says.GOODBYE),
    int(Says.ALTERED),
)  # of each frame it is asked: members of an enum are slow
_BESIDE = frozenset(map(int, (Says.CANCEL, Says.GRANT)))  # these go past the pieces of their call

HIGH = 4 << 20
"""Bytes that wait to be written before writers have to wait."""

_LOW = 256 << 10  # bytes that wait to be written before large frames have to wait
_BURST = 16  # pieces of large frames that are written in one turn of the loop


class Connection(FrameEnd):
    """Frames over a line, which it owns.

    Args:
        loop: the event loop.
        line: not started.
        take: called with kind, number and body of each frame; what is sent in it leaves when all frames that
            came with it were taken. It may raise `WireError`, which ends the connection.
        ended: called once, with the reason, unless this side ended it. '' where the peer said goodbye. The
            peer is told of what was altered on its way (`Tampered`).
        drained: called when all that waited to be written has left.

    Attributes:
        over: it has ended.
        full: so much waits to be written that the next has to wait, until all has left.
        taken: called when what came together was taken, and what was sent meanwhile has left.
        last: the number of the last call that the other side has taken, as its goodbye says.
        unsent: once it has ended, the calls that had not left whole.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        take: Callable[[int, int, bytes | bytearray], None],
        ended: Callable[[str | Tampered], None],
        drained: Callable[[], None],
    ) -> None:
        super().__init__()
        self.last = 0
        self.unsent: frozenset[int] = frozenset()
        self.taken: Callable[[], object] = _nothing
        self._loop = loop
        self._line = line
        self._take = take
        self._ended = ended
        self._poller = Poller(loop)
        self._polling = False
        self._outbox = Outbox()
        self._pieces = Pieces()
        self.set_up(loop.call_soon, self._pieces.bodies, self._outbox.lanes)
        self._pumping = False
        self._writers: list[asyncio.Future[None]] = []
        self._drained = drained
        line.received, line.ended, line.drained = self._received, self._line_ended, self._has_drained
        line.start()

    async def until_room(self, *, large: bool = False) -> None:
        """Return when not too much waits to be written, or nothing can be written any more."""
        while (self.full or (large and self.crowded)) and not self.over:
            written: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(written)
            await written

    def in_turn(self, lane: int, nbytes: int) -> bool:
        """Whether a frame is sent by `send_in_turn`: it is large, or follows one in its lane."""
        return nbytes > PIECE or lane in self._outbox.lanes

    def send_in_turn(self, lane: int, kind: Says, number: int, *body: bytes | memoryview) -> None:
        """Send a frame in pieces, while small frames go between them."""
        if not self.over:
            self._outbox.add(lane, kind, number, body)
            self._pump_soon()

    def drop(self, lane: int, number: int) -> None:
        """Send no more of a frame."""
        self._outbox.drop(lane, number)

    def forget(self, number: int) -> None:
        """Drop what has come of a frame that does not come whole."""
        self._pieces.drop(number)

    @property
    def crowded(self) -> bool:
        """Whether so much of large frames waits that the next large one has to wait."""
        return self._outbox.nbytes > HIGH

    def poll(self) -> bool:
        """Look for frames for some microseconds, if that promises something; whether some came.

        Who asks one thing after the other has its answers so without sleeping in between. Asked by several
        in one turn of the loop, nobody polls: what they send leaves together.
        """
        if self.over or self.together > 1 or self._polling or self.holds or not self._poller.only(self):
            return False
        self._polling = True
        try:
            return self._poller.poll(self._line.poll)
        finally:
            self._polling = False

    def overdue(self) -> bool:
        """Whether who polled with success has to let the loop turn."""
        return self._poller.overdue()

    def close(self, last: int = 0) -> None:
        """Say goodbye, and end it when all that was sent has left.

        Args:
            last: number of the last call that was taken here.
        """
        if not self.over:
            self.flush()
            while self._outbox.lanes:
                self._write(b"".join(self._outbox.cut()))
            self._line.write(frame(Says.GOODBYE, last))
            self._stop()
            self._line.close()

    def kill(self) -> None:
        """End it at once."""
        if not self.over:
            self._stop()
            self._line.kill()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write pieces of large frames, as long as little waits before them."""
        self._pumping = False
        self.flush()  # perhaps it says that a frame does not come whole: before the next one begins
        was_crowded = self.crowded
        for _ in range(_BURST):
            if not self._outbox.lanes or self._line.waiting > _LOW or self.over:
                break
            self._write(b"".join(self._outbox.cut()))
        if self._outbox.lanes and self._line.waiting <= _LOW:
            self._pump_soon()
        if was_crowded and not self.crowded:
            self._let_writers_go()

    def _write(self, data: bytes) -> None:
        line = self._line
        line.write(data)
        if line.waiting > HIGH:
            self.full = True

    def _received(self, data: bytes) -> None:
        self.holds = True
        try:
            self.deliver(data)
        except WireError as error:
            self._end(f"protocol error: {error.message}")
        except Exception:
            self._end("an error inside aiodist")  # what came behind it would be lost without a word
            raise
        finally:
            self.flush()
        self.taken()

    def _frame(self, kind: int, number: int, body: bytes | bytearray) -> None:
        if kind == _PIECE:
            self._pieces.add(number, body)
        elif kind == _GOODBYE:
            self.last = number
            self.kill()
            self._ended("")
        elif kind == _ALTERED:
            self._end(Tampered())
        else:
            self._take(kind, number, body if kind in _BESIDE else self._pieces.whole(number, body))

    def _end(self, why: str | Tampered) -> None:
        if not self.over:
            self.kill()
            self._ended(why)

    def _line_ended(self, why: str | Tampered) -> None:
        if not self.over and isinstance(why, Tampered):
            self._line.write(frame(Says.ALTERED, 0))
            self._stop()
            self._line.close()
            self._ended(why)
        else:
            self._end(why)

    def _stop(self) -> None:
        self.over = True
        self.forget_held()
        self.unsent = frozenset(self._outbox.numbers())
        self._outbox.clear()
        self._has_drained()

    def _has_drained(self) -> None:
        self.full = False
        if self._outbox.lanes:
            self._pump_soon()
        self._let_writers_go()

    def _let_writers_go(self) -> None:
        writers, self._writers = self._writers, []
        for written in writers:
            if not written.done():
                written.set_result(None)
        self._drained()


def _nothing() -> None:
    pass
