"""Accepting connections, without a transport for each; the silent ones wait in an `Admission`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from aiodist.net.admission import Admission, Enter, Turned
from aiodist.net.alarm import Alarm
from aiodist.net.forks import own_socket
from aiodist.net.shortage import EXHAUSTED

_AT_ONCE = 16  # connections that one turn of the loop accepts: a crowd must not hold it
_PAUSE = 1.0  # seconds until it is tried again where none can be accepted; the kernel keeps them so long
_TRIES = 5  # in a row, after which the owner is told


class Listener:
    """A listener: calls `on_socket` with every connection that sends something, non-blocking, until closed.

    Args:
        loop: the event loop, running or about to run.
        socks: listen, and are non-blocking; the listener owns them, also where it cannot be made.
        on_socket: see `Admission`.
        turned_away: see `Admission`.
        log: is told when this process has no descriptor or memory left for a connection.
        exhausted: called with the error when that has been so for seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socks: list[socket.socket],
        on_socket: Enter,
        turned_away: Turned,
        log: logging.Logger,
        exhausted: Callable[[OSError], object] | None = None,
    ) -> None:
        self._loop = loop
        self._socks = socks
        self._log = log
        self._admission = Admission(loop, on_socket, turned_away)
        self._exhausted = exhausted
        self._failed = 0  # times in a row
        self._alarm = Alarm(loop, self._resume)  # after a pause
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening; connections that were handed over stay. May be called again."""
        self._alarm.stop()
        if not self._loop.is_closed():
            self._pause()
        for sock in self._socks:
            sock.close()
        self._socks = []
        self._admission.close()

    def _resume(self) -> None:
        for sock in self._socks:
            self._loop.add_reader(sock.fileno(), self._acceptable, sock)

    def _pause(self) -> None:
        for sock in self._socks:
            self._loop.remove_reader(sock.fileno())

    def _acceptable(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._socks:
                return  # closed meanwhile
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                # The socket stays readable: without a pause the loop would do nothing else.
                self._pause()
                self._alarm.set(self._loop.time() + _PAUSE)
                if error.errno not in EXHAUSTED:
                    raise  # the loop says it
                self._log.error("nobody is accepted for %g s: %s", _PAUSE, error.strerror)
                self._failed += 1
                if self._failed == _TRIES and self._exhausted is not None:
                    self._exhausted(error)
                return
            self._failed = 0
            sock.setblocking(False)
            self._admission.add(own_socket(sock))
