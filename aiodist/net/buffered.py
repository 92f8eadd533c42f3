"""A stream socket that keeps what it cannot send yet: under store connections, control links and data links.

A transport of asyncio does that, too, but it lacks four things that are needed here.
- The owner reads where and when it wants: straight into a tensor, or from inside a call that polls.
- Header and payload leave in one call to the system, and are not made one piece before.
- A layer of records may stand on the socket (TLS, or tags: `net.records`). What was offered to it and not
  taken has to be offered again, the same bytes. A queue of pieces does that by itself.
- Another thread can send, too (`PostedSocket`).

A data link, which carries the bulk, reads, and tries to write, on the socket itself, and leaves to this class
what did not fit.

An error of writing is no reason to stop reading: what the peer said before it went may say why. So the owner
is told by a call of its own, later, and reads to the end first. A host that has no memory for a moment
(`net.shortage`) is no error: the socket is left alone for that moment, and offered the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aiodist.net.records import Bytes, RecordSocket
from aiodist.net.shortage import AGAIN, NO_MEMORY

NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""The flag of each send: a peer that has gone is an error of the call, not a signal to this process."""

_CHUNK = 4 << 10  # bytes that are read of an idle connection: `recv` allocates what it is asked for
_LARGE_CHUNK = 256 << 10  # of one that fills the small chunk


class BufferedSocket:
    """A connected, non-blocking stream socket, which it owns, and what waits to be sent on it.

    Args:
        loop: the event loop.
        sock: the socket, or a layer of records on it.
        readable: called when there is something to read, from `watch` on.
        drained: called by the loop when all that waited has left.
        broken: called by the loop, once, with the error after which nothing can be written.

    Attributes:
        sock: as given; the owner may put a layer on it while nothing waits.
        is_open: whether something can still be written.
        queue: what waits, first to last; none of the pieces is empty.
        unread: bytes in it.
        wanted: whether `drained` is due.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket | RecordSocket,
        readable: Callable[[], object],
        drained: Callable[[], object],
        broken: Callable[[OSError], object],
    ) -> None:
        self.sock = sock
        self.is_open = True
        self.queue: deque[memoryview] = deque()
        self.unread = 0
        self.wanted = False
        self._loop = loop
        self._fd = sock.fileno()
        self._readable = readable
        self._drained = drained
        self._broken = broken
        self._chunk = _CHUNK
        self._stopped = False
        self._watched = False  # the loop looks whether there is something to read
        self._armed = False  # likewise, whether there is room to write

    # Reading.

    def watch(self) -> None:
        """Have `readable` called, never from inside this call, unless it has stopped. May be called twice."""
        if self._watched or self._stopped:
            return
        self._watched = True
        self._loop.add_reader(self._fd, self._readable)
        self.watch_rest()

    def watch_rest(self) -> None:
        """Have it called for what a layer has read from the socket already: no selector tells of that."""
        pending = getattr(self.sock, "pending", None)
        if pending is not None and pending():
            self._loop.call_soon(self._read_rest)

    def unwatch(self) -> None:
        """Have it called no more. May be called twice."""
        if self._watched:
            self._watched = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def read(self) -> bytes | None:
        """Read what has arrived: b"" at the end, None where there is nothing. Raises as the socket does."""
        try:
            data = self.sock.recv(self._chunk)
        except (BlockingIOError, InterruptedError):
            return None
        self._chunk = _LARGE_CHUNK if len(data) >= self._chunk else _CHUNK
        return data

    def _read_rest(self) -> None:
        if self._watched:
            self._readable()

    # Writing.

    def write(self, data: bytes) -> None:
        """Send bytes behind all that waits; they wait, too, where the socket does not take them now."""
        if not self.is_open:
            return
        sent = 0
        if not self.queue:
            try:
                sent = self.sock.send(data, NOSIGNAL)
            except OSError as error:
                if not may_be_offered_again(error):
                    self.fail(error)
                    return
            if sent == len(data):
                return
        self.keep(memoryview(data)[sent:])

    def keep(self, piece: Bytes) -> None:
        """Send bytes that the socket did not take just now; borrowed until `drained`, or `own`."""
        self.queue.append(memoryview(piece))
        self.unread += len(piece)
        self.arm()

    def own(self) -> None:
        """Copy what waits in the memory of others, which is not looked at any more."""
        self.queue = deque(p if type(p.obj) is bytes else memoryview(bytes(p)) for p in self.queue)

    def arm(self) -> None:
        """Have `drained` called, once the socket takes bytes and none wait."""
        if not self.is_open:
            return
        self.wanted = True
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._fd, self.flush)

    def flush(self) -> None:
        """Send what waits, as much as the socket takes. The loop calls this; a caller that polls may."""
        try:
            self._send_waiting()
        except OSError as error:
            if not may_be_offered_again(error):
                self.fail(error)
            elif error.errno in NO_MEMORY and self._armed:
                self._disarm()
                self._loop.call_later(AGAIN, self._go_on)
            return
        self.wanted = False
        self._drained()
        if not self.wanted:
            self._disarm()

    def fail(self, error: OSError) -> None:
        """Write no more: the connection is broken."""
        self._drop()
        self._loop.call_soon(self._broken, error)

    # Ending.

    def stop(self) -> None:
        """Read and write no more; what waits is dropped. To the peer nothing has happened before `close`."""
        self._stopped = True
        self.unwatch()
        self._drop()

    def close(self) -> None:
        """Close the socket at once. May be called twice."""
        self.stop()
        self._readable = self._drained = self._broken = _ignore  # the owner need not wait for a collector
        self.sock.close()

    # Inside.

    def _send_waiting(self) -> None:
        queue = self.queue
        while queue:
            if len(queue) > 1:  # a header and its payload, say
                self._remove(self.sock.sendmsg((queue[0], queue[1]), (), NOSIGNAL))
            else:
                self._remove(self.sock.send(queue[0], NOSIGNAL))

    def _remove(self, sent: int) -> None:
        """Remove bytes that have left from the front of the queue."""
        queue = self.queue
        self.unread -= sent
        while sent:
            first = queue[0]
            if sent < len(first):
                queue[0] = first[sent:]
                return
            sent -= len(first)
            queue.popleft()

    def _go_on(self) -> None:
        """Try again: perhaps this host has memory now."""
        if self.wanted:
            self.arm()

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            if not self._loop.is_closed():
                self._loop.remove_writer(self._fd)

    def _drop(self) -> None:
        self.is_open = self.wanted = False
        self.queue.clear()
        self.unread = 0
        self._disarm()


class PostedSocket(BufferedSocket):
    """A buffered socket on which other threads may `post`, while the loop is stuck in a call, say.

    So a lock is held to touch the socket, or what waits; never across a callback. Nothing under it blocks. It
    is a class of its own because locks cost 3 % of each call of a store, and no thread posts there.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock = threading.RLock()

    def post(self, data: bytes) -> None:
        """Send bytes from any thread. They are dropped where others wait; the loop finds errors by itself."""
        sent = 0
        with self._lock:
            if not self.is_open or self.queue:
                return
            try:
                sent = self.sock.send(data, NOSIGNAL)
            except OSError as error:
                if not may_be_offered_again(error):
                    return
            if sent == len(data):
                return
            self.queue.append(memoryview(data)[sent:])
            self.unread += len(data) - sent
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.arm)

    def read(self) -> bytes | None:
        with self._lock:
            return super().read()

    def write(self, data: bytes) -> None:
        with self._lock:
            super().write(data)

    def close(self) -> None:
        with self._lock:  # or the descriptor's number may be another's before a thread has written there
            super().close()

    def _send_waiting(self) -> None:
        with self._lock:
            super()._send_waiting()

    def _drop(self) -> None:
        with self._lock:
            super()._drop()


def _ignore(*_: object) -> None:
    pass


def may_be_offered_again(error: OSError) -> bool:
    """Whether the socket did not take what it was offered, and may take it later."""
    return isinstance(error, BlockingIOError | InterruptedError) or error.errno in NO_MEMORY
