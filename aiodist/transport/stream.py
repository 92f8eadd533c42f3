"""Links over stream sockets (TCP, Unix), read and written without transports in between.

How they write is in `writing`. Reading takes headers and small payloads through one buffer; the payload of a
larger fragment is received straight into its place, together with the next header in the same call. While one
is under way a TCP socket wakes the loop only when it is all here.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

from aiodist.errors import Tampered, WireError
from aiodist.transport.base import EAGER_MESSAGE
from aiodist.transport.link import BURST, NO_GOODBYE, LinkUser
from aiodist.transport.writing import WritingLink
from aiodist.wire.frame import HEADER, Frame, Type, pack, parse

_STAGING = 64 * 1024
_OVERFLOW = 2 * 1024  # staging offered behind a large payload: some headers, not much of the next payload
_WEIGHT = 2 * BURST // _STAGING  # of bytes in small frames: acting on a buffer of them takes that much longer
_SMALL = EAGER_MESSAGE  # payloads up to this size go through the staging buffer
_DATA, _GOODBYE = int(Type.DATA), int(Type.GOODBYE)
_NOTHING = memoryview(b"")


class StreamLink(WritingLink):
    """A link over a connected, non-blocking stream socket, which it owns.

    Args:
        loop: the event loop.
        sock: the connection, past its handshake; perhaps a `SecureSocket`.
        leftover: bytes that were read behind the handshake.

    Attributes:
        on_gone: called when the socket has been closed, whoever did it.
    """

    on_gone: Callable[[], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, leftover: bytes = b"") -> None:
        super().__init__(loop, sock)
        self.on_closed = None
        # Whether something was read that the loop cannot know of; a plain socket keeps nothing back.
        self._pending: Callable[[], bool] | None = getattr(sock, "pending", None)
        self._staging = memoryview(bytearray(max(_STAGING, len(leftover))))
        self._staging[: len(leftover)] = leftover
        self._start = 0
        self._end = len(leftover)
        self._overflow = self._staging[:_OVERFLOW]
        self._frame: Frame | None = None  # its payload is being received: from byte `_at` on into `_place`
        self._place = _NOTHING
        self._at = 0
        self._filled = 0
        self._resuming = False
        # Bytes from which on the socket counts as readable; 0 where that cannot be said.
        self._low_water = int(sys.platform == "linux" and sock.family in (socket.AF_INET, socket.AF_INET6))

    # Link.

    def start(self, user: LinkUser) -> None:
        self._user = user
        self._loop.add_reader(self._fd, self._readable)
        if self._end:
            self._resume_later()
        elif self._pending is not None and self._pending():
            self._loop.call_soon(self._read_rest)

    def divert(self, place: memoryview) -> None:
        if self._frame is not None:
            self._place = place[: len(self._place)]

    def close(self) -> None:
        if self._over or self._closing:
            return
        self._closing = True
        self.keep()
        self.post(pack(_GOODBYE))
        if self._frame is not None:
            self._place = memoryview(bytearray(len(self._place)))

    def kill(self) -> None:
        self._shut()

    def poll(self) -> None:
        if self._user is None:
            return
        if self._waiting and not self._write_error:
            self._write_ready()
        if not self._over:
            self._read()

    def later(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    # Reading.

    def _read_to_end(self) -> None:
        if self._over or self._user is None:
            return
        if self._read() == 0:
            self._finish(self._write_error)
        else:
            self._loop.call_soon(self._read_to_end)

    def _readable(self) -> None:
        """Read: the loop says that there is something."""
        self._read()
        if not self._over and self._frame is not None and self._low_water:
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
        try:
            while total < BURST and not self._over:
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
                    self._finish(NO_GOODBYE)
                    break
                self._took(nbytes)
                total += nbytes * _WEIGHT if staged and self._frame is None else nbytes
                if nbytes < asked:
                    break  # the socket is most likely empty: asking again would cost a call
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(error.strerror or str(error))
        except Tampered as error:
            self._tampered(error)
        except WireError as error:
            self._finish(f"protocol error: {error.message}")
        if total >= BURST and self._pending is not None and not self._over and self._pending():
            self._loop.call_soon(self._read_rest)
        if self._low_water > 1 and not self._over:
            due = 1 if self._frame is None else self._frame.nbytes - self._at - self._filled
            if due < self._low_water:
                self._wake_at(due)
        return total

    def _read_rest(self) -> None:
        """Go on with what was read from the socket already."""
        if not self._over and not self._finishing:
            self._readable()

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
            if not self._closing and self._user is not None:
                # A callback that raises must not leave frames behind in the buffer, unread.
                self._guard(self._user.placed, frame, at, size)
            if more:
                self._next_place(frame, at + size)
                return
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
        place = None
        if self._user is not None and not self._closing:
            place = self._user.place(frame, at)
        if self._over:
            return False
        if place is None or self._closing:
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
            self._loop.call_exception_handler({"message": "a receive's callback failed", "exception": error})

    @staticmethod
    def _payload_of(frame: Frame) -> int:
        """Bytes that follow a header on the socket."""
        if frame.type == Type.MAPPED:
            raise WireError("a MAPPED frame on a link without shared memory")
        return frame.nbytes

    def _dispatch(self, frame: Frame, payload: memoryview) -> None:
        if frame.type == _GOODBYE:
            self._goodbye()
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
            self._finish(f"protocol error: {error.message}")

    # Ending.

    def _goodbye(self) -> None:
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
            user.ended(True, "")

    def _finish(self, cause: str) -> None:
        """End the link: the peer is gone without goodbye, or broke the protocol. In that case the others are
        told before the peer is: see `ChannelEndpoint._lost`."""
        if self._over:
            return
        user = self._user
        self._stop()
        try:
            if self._closing:
                if self.on_closed is not None:
                    self.on_closed()
            elif user is not None:
                user.ended(False, cause)
        finally:
            self._release()

    def _tampered(self, error: Tampered) -> None:
        """End the link: what came is not what the peer sent. Nothing of it is read any more, and it is told
        goodbye, or it would take this process for dead."""
        user, self._user = self._user, None
        if self._closing:
            self._finish("")
            return
        self._frame = None
        self.keep()
        self.post(pack(_GOODBYE))
        self._closing = self._finishing = True
        self._loop.remove_reader(self._fd)
        if not self._queue:
            self._shut()
        if user is not None:
            user.ended(False, error)

    def _shut(self) -> None:
        """Close the socket and drop everything; nobody is called."""
        if not self._over:
            self._stop()
            self._release()

    def _stop(self) -> None:
        """Read and write no more."""
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

    def _release(self) -> None:
        """Close what the link owns, after `_stop`."""
        self._sock.close()
        if self.on_gone is not None:
            self.on_gone()
