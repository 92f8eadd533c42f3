"""Links over stream sockets (TCP, Unix), read and written without transports in between.

Writing tries the socket first, header and payload in one call, so that a message on an idle link has
left when `send` returns; what does not fit is kept, by reference where it is a borrowed segment, and
follows when the loop says that the socket is writable. Reading takes headers and small payloads through
one buffer; the payload of a larger segment is received straight into its place, together with the next
header in the same call.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from aiodist.errors import WireError
from aiodist.transport.base import EAGER_MESSAGE, Key
from aiodist.transport.link import BURST, NO_GOODBYE, Link, LinkUser
from aiodist.wire.frame import HEADER, Flag, Frame, Type, pack, parse

_STAGING = 64 * 1024
_OVERFLOW = 2 * 1024  # staging offered behind a large payload: some headers, not much of the next payload
_SMALL = EAGER_MESSAGE  # payloads up to this size go through the staging buffer
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_DATA, _GOODBYE = int(Type.DATA), int(Type.GOODBYE)
_NOTHING = memoryview(b"")


class StreamLink(Link):
    """A link over a connected, non-blocking stream socket, which it owns.

    Args:
        loop: the event loop.
        sock: the connection, past its handshake.
        leftover: bytes that were read behind the handshake.

    Attributes:
        on_gone: called when the socket has been closed, whoever did it.
    """

    on_gone: Callable[[], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, leftover: bytes = b"") -> None:
        self.room = True
        self.on_closed = None
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._user: LinkUser | None = None
        # Writing.
        self._queue: deque[memoryview] = deque()
        self._borrowed: memoryview | None = None  # the element of the queue that is not our own memory
        self._burst = 0
        self._armed = False  # the loop watches for writability
        self._waiting = False  # there is a reason for it
        self._write_error = ""
        # Reading.
        self._staging = memoryview(bytearray(max(_STAGING, len(leftover))))
        self._staging[: len(leftover)] = leftover
        self._start = 0
        self._end = len(leftover)
        self._overflow = self._staging[:_OVERFLOW]
        self._frame: Frame | None = None  # its payload is being received into `_place`
        self._place = _NOTHING
        self._filled = 0
        self._resuming = False
        # Ending.
        self._closing = False
        self._finishing = False  # both said goodbye; only the queue is left to be written
        self._over = False

    # Link.

    def start(self, user: LinkUser) -> None:
        self._user = user
        self._loop.add_reader(self._fd, self._readable)
        if self._end:
            self._resume_later()

    def post(self, header: bytes, payload: memoryview | None = None) -> None:
        if self._over or self._write_error:
            return
        if self._queue:
            self._queue.append(memoryview(header if payload is None else header + payload))
            return
        try:
            if payload is None:
                sent = self._sock.send(header, _NOSIGNAL)
            else:
                sent = self._sock.sendmsg((header, payload), (), _NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._write_failed(error)
            return
        if sent < HEADER or (payload is not None and sent < HEADER + len(payload)):
            whole = header if payload is None else header + payload
            self._queue.append(memoryview(whole)[sent:])
            self._wait_to_write()

    def write(self, key: Key, payload: memoryview, offset: int, total: int, signature: bytes) -> bool:
        nbytes = len(payload)
        header = pack(_DATA, *key, nbytes=nbytes, offset=offset, total=total, signature=signature)
        try:
            sent = self._sock.sendmsg((header, payload), (), _NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._write_failed(error)
            return False
        self._burst += sent
        if sent == HEADER + nbytes:
            if self._burst >= BURST:
                self._wait_to_write()
            return True
        if sent < HEADER:
            self._queue.append(memoryview(header)[sent:])
            sent = HEADER
        if nbytes:
            self._borrowed = payload[sent - HEADER :]
            self._queue.append(self._borrowed)
        self._wait_to_write()
        return not nbytes

    def keep(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            self._queue = deque(memoryview(bytes(p)) if p is borrowed else p for p in self._queue)

    def divert(self, place: memoryview) -> None:
        if self._frame is not None:
            self._place = place[: len(self._place)]

    def close(self, moved: bool = False) -> None:
        if self._over or self._closing:
            return
        self._closing = True
        self.keep()
        self.post(pack(_GOODBYE, flags=Flag.MOVED if moved else 0))
        if self._frame is not None:
            self._place = memoryview(bytearray(len(self._place)))

    def kill(self) -> None:
        self._shut()

    # Writing.

    def _wait_to_write(self) -> None:
        self.room = False
        self._waiting = True
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._fd, self._write_ready)

    def _write_ready(self) -> None:
        self._burst = 0
        queue = self._queue
        try:
            while queue:
                sent = self._sock.sendmsg(
                    (queue[0], queue[1]) if len(queue) > 1 else (queue[0],), (), _NOSIGNAL
                )
                self._drop(sent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._write_failed(error)
            return
        if self._finishing:
            self._shut()
            return
        self._borrowed = None
        self._waiting = False
        self._make_room()
        if self._armed and not self._waiting:
            self._armed = False
            self._loop.remove_writer(self._fd)

    def _make_room(self) -> None:
        self.room = True
        if self._user is not None and not self._closing:
            self._user.writable()

    def _drop(self, sent: int) -> None:
        """Remove bytes that left from the front of the queue."""
        queue = self._queue
        while sent:
            first = queue[0]
            if sent < len(first):
                rest = first[sent:]
                if first is self._borrowed:
                    self._borrowed = rest
                queue[0] = rest
                return
            sent -= len(first)
            queue.popleft()

    def _write_failed(self, error: OSError) -> None:
        """The connection is broken. What the peer sent before is still read; the reader finds the end."""
        self._write_error = error.strerror or str(error)
        self.room = False
        self._queue.clear()
        self._borrowed = None
        if self._armed:
            self._armed = False
            self._loop.remove_writer(self._fd)
        if self._finishing:
            self._loop.call_soon(self._shut)
        else:
            self._loop.call_soon(self._read_to_end)

    def _read_to_end(self) -> None:
        if self._over or self._user is None:
            return
        if self._readable() == 0:
            self._finish(False, False, self._write_error)
        else:
            self._loop.call_soon(self._read_to_end)

    # Reading.

    def _readable(self) -> int:
        """Read at most about BURST bytes; returns how many."""
        total = 0
        try:
            while total < BURST and not self._over:
                if self._frame is not None:
                    rest = self._place[self._filled :]
                    nbytes = self._sock.recvmsg_into((rest, self._overflow))[0]
                    asked = len(rest)
                else:
                    asked = len(self._staging) - self._end
                    nbytes = self._sock.recv_into(self._staging[self._end :])
                if not nbytes:
                    self._finish(False, False, NO_GOODBYE)
                    break
                total += nbytes
                self._took(nbytes)
                if nbytes < asked:
                    break  # the socket is most likely empty: asking again would cost a call
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(False, False, error.strerror or str(error))
        except WireError as error:
            self._finish(False, False, f"protocol error: {error.message}")
        return total

    def _took(self, nbytes: int) -> None:
        """Bytes were read to where `_readable` said."""
        frame = self._frame
        if frame is None:
            self._end += nbytes
        else:
            rest = len(self._place) - self._filled
            if nbytes < rest:
                self._filled += nbytes
                return
            self._end = nbytes - rest
            self._frame = None
            self._place = _NOTHING
            if not self._closing and self._user is not None:
                # A callback that raises must not leave frames behind in the buffer, unread.
                self._guard(self._user.placed, frame)
        self._parse()

    def _parse(self) -> None:
        """Hand on the frames in the staging buffer."""
        staging = self._staging
        while self._end - self._start >= HEADER and not self._over:
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
            place = self._place_for(frame)
            if place is None:
                return
            place[:have] = staging[begin : self._end]
            self._frame, self._place, self._filled = frame, place, have
            self._start = self._end = 0
            return
        left = self._end - self._start
        if left and self._start:
            staging[:left] = bytes(staging[self._start : self._end])
        self._start, self._end = 0, left

    def _place_for(self, frame: Frame) -> memoryview | None:
        """Where a payload goes; None if the user ended the link instead of saying so."""
        place = None
        if self._user is not None and not self._closing:
            place = self._user.place(frame)
        return self._bin_or(place, frame.nbytes)

    def _bin_or(self, place: memoryview | None, nbytes: int) -> memoryview | None:
        if self._over:
            return None
        return memoryview(bytearray(nbytes)) if place is None or self._closing else place

    def _guard(self, callback: Callable[..., None], *args: object) -> None:
        """Call the user; an error that is not the peer's goes to the loop's handler, and reading goes on."""
        try:
            callback(*args)
        except WireError:
            raise
        except Exception as error:
            self._loop.call_exception_handler({"message": "a receive's callback failed", "exception": error})

    def _payload_of(self, frame: Frame) -> int:
        """Bytes that follow a header on the socket."""
        if frame.type == Type.MAPPED:
            raise WireError("a MAPPED frame on a link without shared memory")
        return frame.nbytes

    def _dispatch(self, frame: Frame, payload: memoryview) -> None:
        if frame.type == _GOODBYE:
            self._goodbye(frame)
        elif not self._closing and self._user is not None:
            self._guard(self._user.received, frame, payload)

    def _resume_later(self) -> None:
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Parse what was read before the link started."""
        self._resuming = False
        if self._over:
            return
        try:
            self._parse()
        except WireError as error:
            self._finish(False, False, f"protocol error: {error.message}")

    # Ending.

    def _goodbye(self, frame: Frame) -> None:
        user = self._user
        if not self._closing:
            self.keep()
            self.post(pack(_GOODBYE))
        was_closing, self._closing = self._closing, True
        self._user = None
        self._finishing = True
        if was_closing or not self._queue:
            self._shut()
        elif not self._over:
            self._loop.remove_reader(self._fd)
        if was_closing:
            if self.on_closed is not None:
                self.on_closed()
        elif user is not None:
            user.ended(True, bool(frame.flags & Flag.MOVED), "")

    def _finish(self, goodbye: bool, moved: bool, cause: str) -> None:
        """The connection is gone without the peer's goodbye."""
        user = self._user
        self._shut()
        if self._closing:
            if self.on_closed is not None:
                self.on_closed()
        elif user is not None:
            user.ended(goodbye, moved, cause)

    def _shut(self) -> None:
        """Close the socket and drop everything; nobody is called."""
        if self._over:
            return
        self._over = True
        self.room = False
        self._user = None
        self._queue.clear()
        self._borrowed = None
        self._frame = None
        self._place = _NOTHING
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            if self._armed:
                self._loop.remove_writer(self._fd)
        self._armed = False
        self._sock.close()
        if self.on_gone is not None:
            self.on_gone()
