"""Links inside one process, for tests and simulation: frames travel through the event loop's queue.

Payloads are copied once, so that nobody sees another rank's memory. A link carries at most WINDOW bytes
of fragments at a time, which makes a sender wait as a socket would.
"""

from __future__ import annotations

import asyncio

from aiodist.base.errors import WireError
from aiodist.net.wire.frame import Type, pack, parse
from aiodist.transport.ending import Ending, EndingEvent, Stage
from aiodist.transport.link import NO_GOODBYE, Handed, Link, LinkUser, Message
from aiodist.transport.pipe import Delay, Pipe

WINDOW = 1 << 20
_NOTHING = memoryview(b"")


class MemoryLink(Link):
    """One end of an in-process link; made in pairs."""

    def __init__(self) -> None:
        self.room = True
        self._user: LinkUser | None = None
        self.out: Pipe[tuple[bytes, bytes] | None]
        self._other: MemoryLink
        self._in_flight = 0
        self._ending = Ending()

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, a: int, b: int, delay: Delay | None = None
    ) -> tuple[MemoryLink, MemoryLink]:
        """The two ends of a link between ranks `a` and `b`."""
        ends = cls(), cls()
        for mine, other, src, dst in ((*ends, a, b), (*ends[::-1], b, a)):
            mine.out = Pipe(loop, other.arrived, delay, src, dst)
            mine._other = other
        return ends

    def start(self, user: LinkUser) -> None:
        self._user = user

    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        if not self._ending.over:
            self.out.push((header, b"" if payload is None else bytes(payload)))

    def write(self, message: Message, start: int, stop: int) -> Handed:
        self._in_flight += stop - start
        self.room = self._in_flight < WINDOW
        self.post(message.header(Type.DATA, start, stop), message.data[start:stop])
        return Handed.TAKEN

    def close(self) -> None:
        if self._ending.happened(EndingEvent.CLOSE) is not None:
            self._user = None
            self.post(pack(Type.GOODBYE))

    def kill(self) -> None:
        if self._ending.happened(EndingEvent.KILL) is not None:
            self._user = None
            self.out.push(None)

    def arrived(self, item: tuple[bytes, bytes] | None) -> None:
        """Take what the other end has sent; called by the pipe that leads here."""
        if self._ending.over:
            return
        if item is None:
            self._end(EndingEvent.FAILED, NO_GOODBYE)
            return
        header, payload = item
        try:
            frame = parse(header)
            if frame.type == Type.GOODBYE:
                self._end(EndingEvent.GOODBYE, "")
                return
            if self._user is not None:
                self._user.received(frame, memoryview(payload) if payload else _NOTHING)
        except WireError as error:
            self._end(EndingEvent.FAILED, f"protocol error: {error.message}")
            self.out.push(None)
            return
        if frame.type == Type.DATA:
            self._other._landed(len(payload))

    def _landed(self, nbytes: int) -> None:
        """Note that the other end has taken a fragment of ours."""
        self._in_flight -= nbytes
        if not self.room and self._in_flight < WINDOW:
            self.room = True
            if self._user is not None:
                self._user.writable()

    def _end(self, event: EndingEvent, cause: str) -> None:
        user, self._user = self._user, None
        left = self._ending.happened(event)
        if self._ending.stage is Stage.LEAVING:  # a pipe takes all at once
            self.post(pack(Type.GOODBYE))
            self._ending.happened(EndingEvent.SENT)
        if left is Stage.CLOSING and self.on_closed is not None:
            self.on_closed()
        if user is not None:
            user.ended(event is EndingEvent.GOODBYE, cause)
