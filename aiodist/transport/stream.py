"""Links over stream sockets (TCP, Unix), read and written without transports in between.

*Writing* tries the socket first, header and payload in one call, so that a message on an idle link has left
when `write` returns; what does not fit waits (`net.buffered`), by reference where it is borrowed, and
follows when the loop says that the socket is writable.

*Reading* takes headers and small payloads through one buffer; the payload of a larger fragment is received
straight into its place, together with the next header in the same call. While one is under way a TCP socket
wakes the loop only when it is all here.

How a link ends is in `ending`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

from aiodist.base.errors import Tampered, WireError
from aiodist.net.buffered import NOSIGNAL, BufferedSocket, may_be_offered_again
from aiodist.net.traffic import Traffic, traffic_of
from aiodist.net.wire.frame import HEADER, PAYLOAD_LIMIT, Frame, Type, pack, parse
from aiodist.transport.base import EAGER_MESSAGE
from aiodist.transport.ending import Ending, EndingEvent, Stage
from aiodist.transport.link import BURST, NO_GOODBYE, Handed, Link, LinkUser, Message

_STAGING = 64 * 1024
_OVERFLOW = 2 * 1024  # staging offered behind a large payload: some headers, not much of the next payload
_WEIGHT = 2 * BURST // _STAGING  # of bytes in small frames: acting on a buffer of them takes that much longer
_SMALL = EAGER_MESSAGE  # payloads up to this size go through the staging buffer
_RAW_FROM = 1024  # bytes: below, authenticating costs less than telling the payload from the rest
_DATA, _GOODBYE = int(Type.DATA), int(Type.GOODBYE)
_NOTHING = memoryview(b"")


class StreamLink(Link):
    """A link over a connected, non-blocking stream socket, which it owns.

    Args:
        loop: the event loop.
        sock: the connection, past its handshake; perhaps with a layer of records on it.
        leftover: bytes that were read behind the handshake.

    Attributes:
        on_gone: called when the socket has been closed, whoever did it.
    """

    fragment = PAYLOAD_LIMIT
    on_gone: Callable[[], object] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, leftover: bytes = b"") -> None:
        self.room = True
        self._loop = loop
        self._sock = sock
        self._out = BufferedSocket(loop, sock, self._readable, self._drained, self._broken)
        # Where a socket authenticates what it sends, the payloads of tensors go without (`SealedSocket`).
        self._send_raw: Callable[..., int] | None = getattr(sock, "send_raw", None)
        self._burst = 0  # bytes that were sent since the loop turned
        self._user: LinkUser | None = None  # from `start` to the end of what it is told
        self._ending = Ending()
        self._staging = memoryview(bytearray(max(_STAGING, len(leftover))))
        self._staging[: len(leftover)] = leftover
        self._start = 0
        self._end = len(leftover)
        self._overflow = self._staging[:_OVERFLOW]
        self._frame: Frame | None = None  # its payload is being received: from byte `_at` on into `_place`
        self._place = _NOTHING
        self._at = 0
        self._filled = 0
        # Bytes from which on the socket counts as readable; 0 where that cannot be said.
        self._low_water = int(sys.platform == "linux" and sock.family in (socket.AF_INET, socket.AF_INET6))

    def traffic(self) -> Traffic | None:
        """How its connection goes; None where that is not told. For any thread."""
        return traffic_of(self._sock)

    # Link.

    @property
    def idle(self) -> bool:
        return not self._out.queue

    def start(self, user: LinkUser) -> None:
        self._user = user
        self._out.watch()
        if self._end:
            self._loop.call_soon(self._resume)

    def divert(self, place: memoryview) -> None:
        if self._frame is not None:
            self._place = place[: len(self._place)]

    def close(self) -> None:
        if self._ending.happened(EndingEvent.CLOSE) is None:
            return
        self._user = None
        self.keep()
        self.post(pack(_GOODBYE))
        if self._frame is not None:
            self._place = memoryview(bytearray(len(self._place)))

    def kill(self) -> None:
        self._shut(EndingEvent.KILL)

    def poll(self) -> None:
        if self._user is None:
            return
        if self._out.wanted:
            self._out.flush()
        if not self._ending.over:
            self._read()

    def later(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    # Writing.

    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        out = self._out
        if not out.is_open:
            return
        if out.queue:
            out.keep(header if payload is None else header + payload)
            return
        sent = self._send(header, payload, sealed)
        if 0 <= sent < len(header) + (0 if payload is None else len(payload)):
            self.room = False
            out.keep(memoryview(header if payload is None else header + payload)[sent:])

    def write(self, message: Message, start: int, stop: int) -> Handed:
        payload = message.data[start:stop]
        nbytes = stop - start
        header = message.header(_DATA, start, stop)
        sent = self._send(header, payload, message.sealed)
        if sent < 0:
            return Handed.BORROWED
        self._burst += sent
        if sent == HEADER + nbytes:
            if self._burst >= BURST:
                self.room = False
                self._out.arm()
            return Handed.TAKEN
        self.room = False
        if sent < HEADER:
            self._out.keep(memoryview(header)[sent:])
            sent = HEADER
        if nbytes:
            self._out.keep(payload[sent - HEADER :])
        return Handed.BORROWED if nbytes else Handed.TAKEN

    def keep(self) -> None:
        self._out.own()

    def _send(self, header: bytes, payload: memoryview | None, sealed: bool) -> int:
        """Offer a frame to the socket. Returns how many bytes it took; -1 where it is broken."""
        try:
            if payload is None:
                return self._sock.send(header, NOSIGNAL)
            if self._send_raw is not None and len(payload) > _RAW_FROM and not sealed:
                return self._send_raw(header, payload, NOSIGNAL)
            return self._sock.sendmsg((header, payload), (), NOSIGNAL)
        except OSError as error:
            if may_be_offered_again(error):
                return 0
            self.room = False
            self._out.fail(error)
            return -1

    def _drained(self) -> None:
        """Go on: all that waited has left."""
        self._burst = 0
        if self._ending.stage is Stage.LEAVING:
            self._shut(EndingEvent.SENT)
        else:
            self._make_room()

    def _make_room(self) -> None:
        self.room = True
        if self._user is not None:
            self._guard(self._user.writable)

    def _broken(self, error: OSError) -> None:
        """Read on, as nothing can be written any more: what the peer sent before counts."""
        self._read_to_end(error.strerror or str(error))

    # Reading.

    def _read_to_end(self, cause: str) -> None:
        if self._ending.stage is Stage.LEAVING or self._read() == 0:
            self._finish(EndingEvent.FAILED, cause)
        elif not self._ending.over:
            self._loop.call_soon(self._read_to_end, cause)

    def _readable(self) -> None:
        """Read: the loop says that there is something."""
        self._read()
        if not self._ending.over and self._frame is not None and self._low_water:
            self._wake_at(self._frame.nbytes - self._at - self._filled)

    def _wake_at(self, nbytes: int) -> None:
        """Be woken when the rest of a payload is here. It will come: a sender that has begun a fragment ends
        it, or the connection; and the kernel wakes us before that if it has no room for so much.

        To be woken for every few KiB costs a turn of the loop each time, and has both ends work on one socket
        at once: 64 MiB each way over loopback took 26 ms when woken at 256 KiB, 23 at 1 MiB.
        """
        mark = nbytes if nbytes >= _OVERFLOW else 1
        if mark != self._low_water:
            self._low_water = mark
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)

    def _read(self) -> int:
        """Read at most about BURST bytes, of small frames one buffer; returns how many, by weight."""
        total = 0
        ending = self._ending
        try:
            while total < BURST and not ending.over:
                staged = self._frame is None
                if self._frame is not None:
                    rest = self._place[self._filled :]
                    asked = len(rest)
                    if self._at + len(self._place) < self._frame.nbytes:
                        nbytes = self._sock.recv_into(rest)
                    else:
                        nbytes = self._sock.recvmsg_into((rest, self._overflow))[0]
                else:
                    asked = len(self._staging) - self._end
                    nbytes = self._sock.recv_into(self._staging[self._end :])
                if not nbytes:
                    self._finish(EndingEvent.FAILED, NO_GOODBYE)
                    break
                self._took(nbytes)
                total += nbytes * _WEIGHT if staged and self._frame is None else nbytes
                if nbytes < asked:
                    break  # the socket is most likely empty: asking again would cost a call
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(EndingEvent.FAILED, error.strerror or str(error))
        except Tampered as error:
            self._finish(EndingEvent.ALTERED, error)
        except WireError as error:
            self._finish(EndingEvent.FAILED, f"protocol error: {error.message}")
        if total >= BURST and not ending.over:
            self._out.watch_rest()
        if self._low_water > 1 and not ending.over:
            due = 1 if self._frame is None else self._frame.nbytes - self._at - self._filled
            if due < self._low_water:
                self._wake_at(due)
        return total

    def _took(self, nbytes: int) -> None:
        """Act on bytes that were read to where `_readable` said."""
        frame = self._frame
        if frame is None:
            self._end += nbytes
        else:
            rest = len(self._place) - self._filled
            if nbytes < rest:
                self._filled += nbytes
                return
            at, size = self._at, len(self._place)
            self._end = nbytes - rest
            more = at + size < frame.nbytes
            if not more:
                self._frame = None
                self._place = _NOTHING
            if self._user is not None:
                # A callback that raises must not leave frames behind in the buffer, unread.
                self._guard(self._user.placed, frame, at, size)
            if more:
                self._next_place(frame, at + size)
                return
        self._parse()

    def _parse(self) -> None:
        """Hand on the frames in the staging buffer."""
        staging, ending = self._staging, self._ending
        while self._end - self._start >= HEADER and not ending.over:
            frame = parse(staging, self._start)
            begin = self._start + HEADER
            size = self._payload_of(frame)
            have = self._end - begin
            if have >= size:
                self._start = begin + size
                self._dispatch(frame, staging[begin : self._start] if size else _NOTHING)
                continue
            if size <= _SMALL:
                break
            if frame.type != _DATA:
                raise WireError(f"a {Type(frame.type).name} frame of {size} bytes")
            if self._next_place(frame, 0):
                self._place[:have] = staging[begin : self._end]
                self._filled = have
                self._start = self._end = 0
            return
        left = self._end - self._start
        if left and self._start:
            staging[:left] = bytes(staging[self._start : self._end])
        self._start, self._end = 0, left

    def _next_place(self, frame: Frame, at: int) -> bool:
        """Ask where a payload goes from byte `at` on; False if the user ended the link instead."""
        place = self._user.place(frame, at) if self._user is not None else None
        if self._ending.over:
            return False
        if place is None or self._user is None:
            place = memoryview(bytearray(frame.nbytes - at))
        self._frame, self._place, self._at, self._filled = frame, place, at, 0
        return True

    def _guard(self, callback: Callable[..., None], *args: object) -> None:
        """Call the user; an error that is not the peer's goes to the loop's handler, and reading goes on."""
        try:
            callback(*args)
        except WireError:
            raise
        except Exception as error:
            self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a receive's callback failed", "exception": error})

    @staticmethod
    def _payload_of(frame: Frame) -> int:
        """Bytes that follow a header on the socket."""
        if frame.type in (Type.MAPPED, Type.LENT):
            raise WireError(f"a {Type(frame.type).name} frame on a link without shared memory")
        return frame.nbytes

    def _dispatch(self, frame: Frame, payload: memoryview) -> None:
        if frame.type == _GOODBYE:
            self._finish(EndingEvent.GOODBYE)
        elif self._user is not None:
            self._guard(self._user.received, frame, payload)

    def _resume(self) -> None:
        """Parse what was read before the link started."""
        if self._ending.over:
            return
        try:
            self._parse()
        except WireError as error:
            self._finish(EndingEvent.FAILED, f"protocol error: {error.message}")

    # Ending.

    def _finish(self, event: EndingEvent, cause: str | Tampered = "") -> None:
        """End the link, or begin to, and tell the user; before the peer can see it: where that has broken the
        protocol, the others have to be told first (`Endpoint._lost`)."""
        user = self._user
        left = self._ending.happened(event)
        if left is None:
            return
        self._user = self._frame = None
        if self._ending.stage is Stage.LEAVING:
            self.keep()
            self.post(pack(_GOODBYE))
            self._out.unwatch()
            if not self._out.queue:
                self._ending.happened(EndingEvent.SENT)
        if self._ending.over:
            self._stop()
        try:
            if left is Stage.CLOSING and self.on_closed is not None:
                self.on_closed()
            if user is not None:
                user.ended(event is EndingEvent.GOODBYE, cause)
        finally:
            if self._ending.over:
                self._release()

    def _shut(self, event: EndingEvent) -> None:
        """Close the socket and drop everything; nobody is called."""
        if self._ending.happened(event) is not None:
            self._stop()
            self._release()

    def _stop(self) -> None:
        """Read and write no more."""
        self.room = False
        self._user = self._frame = None
        self._place = _NOTHING
        self._out.stop()

    def _release(self) -> None:
        """Close what the link owns, after `_stop`."""
        self._out.close()
        if self.on_gone is not None:
            self.on_gone()
