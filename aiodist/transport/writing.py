"""The writing half of a stream link.

Writing tries the socket first, header and payload in one call, so that a message on an idle link has
left when `send` returns; what does not fit is kept, by reference where it is a borrowed fragment, and
follows when the loop says that the socket is writable.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from aiodist.net.shortage import AGAIN, NO_MEMORY
from aiodist.transport.base import Key
from aiodist.transport.link import BURST, Link, LinkUser
from aiodist.wire.frame import HEADER, PAYLOAD_LIMIT, Type, pack

_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_DATA = int(Type.DATA)
_RAW_FROM = 1024  # bytes: below, authenticating costs less than telling the payload from the rest


class WritingLink(Link):
    """The part of a `StreamLink` that writes. The arguments are its."""

    fragment = PAYLOAD_LIMIT

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.room = True
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        # Where a socket authenticates what it sends, the payloads of tensors go without (`SealedSocket`).
        self._send_raw: Callable[..., int] | None = getattr(sock, "send_raw", None)
        self._user: LinkUser | None = None
        self._queue: deque[memoryview] = deque()
        self._borrowed: memoryview | None = None  # the element of the queue that is not our own memory
        self._burst = 0
        self._armed = False  # the loop watches for writability
        self._waiting = False  # there is a reason for it
        self._write_error = ""
        self._closing = False
        self._finishing = False  # both said goodbye; only the queue is left to be written
        self._over = False

    @abstractmethod
    def _read_to_end(self) -> None:
        """Hand on what the peer sent before: nothing can be written any more."""

    @abstractmethod
    def _shut(self) -> None:
        """Close the socket and drop everything; nobody is called."""

    @property
    def idle(self) -> bool:
        return not self._queue

    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        if self._over or self._write_error:
            return
        if self._queue:
            self._queue.append(memoryview(header if payload is None else header + payload))
            return
        try:
            if payload is None:
                sent = self._sock.send(header, _NOSIGNAL)
            elif self._send_raw is not None and len(payload) > _RAW_FROM and not sealed:
                sent = self._send_raw(header, payload, _NOSIGNAL)
            else:
                sent = self._sock.sendmsg((header, payload), (), _NOSIGNAL)
        except OSError as error:
            if not _may_be_offered_again(error):
                self._write_failed(error)
                return
            sent = 0
        if sent < HEADER or (payload is not None and sent < HEADER + len(payload)):
            whole = header if payload is None else header + payload
            self._queue.append(memoryview(whole)[sent:])
            self._wait_to_write()

    def write(
        self,
        key: Key,
        payload: memoryview,
        offset: int,
        total: int,
        signature: bytes,
        sealed: bool = False,
    ) -> bool:
        nbytes = len(payload)
        header = pack(_DATA, *key, nbytes=nbytes, offset=offset, total=total, signature=signature)
        try:
            if self._send_raw is not None and nbytes > _RAW_FROM and not sealed:
                sent = self._send_raw(header, payload, _NOSIGNAL)
            else:
                sent = self._sock.sendmsg((header, payload), (), _NOSIGNAL)
        except OSError as error:
            if not _may_be_offered_again(error):
                self._write_failed(error)
                return False
            sent = 0
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

    # When there is room again.

    def _wait_to_write(self) -> None:
        self.room = False
        self._waiting = True
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._fd, self._write_ready)

    def _rest(self) -> None:
        """Stop watching for writability."""
        if self._armed:
            self._armed = False
            self._loop.remove_writer(self._fd)

    def _write_again(self) -> None:
        """Try again: perhaps this host has memory now."""
        if self._queue and not self._over and not self._write_error:
            self._wait_to_write()

    def _write_ready(self) -> None:
        self._burst = 0
        queue = self._queue
        try:
            while queue:
                sent = self._sock.sendmsg(
                    (queue[0], queue[1]) if len(queue) > 1 else (queue[0],), (), _NOSIGNAL
                )
                self._drop(sent)
        except OSError as error:
            if not _may_be_offered_again(error):
                self._write_failed(error)
            elif error.errno in NO_MEMORY and self._armed:  # of this host: no fault of the peer's
                self._rest()
                self._loop.call_later(AGAIN, self._write_again)
            return
        if self._finishing:
            self._shut()
            return
        self._borrowed = None
        self._waiting = False
        self._make_room()
        if not self._waiting:
            self._rest()

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
        """Give up writing, as the connection is broken. What the peer sent before is still read; the reader
        finds the end."""
        self._write_error = error.strerror or str(error)
        self.room = False
        self._queue.clear()
        self._borrowed = None
        self._rest()
        if self._finishing:
            self._loop.call_soon(self._shut)
        else:
            self._loop.call_soon(self._read_to_end)


def _may_be_offered_again(error: OSError) -> bool:
    return isinstance(error, BlockingIOError | InterruptedError) or error.errno in NO_MEMORY
