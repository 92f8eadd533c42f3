"""Takes connections from a listening socket, without a transport for each."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

_AT_ONCE = 64  # connections that one turn of the loop accepts: about 5 ms of work when 1,000 come together
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds until it is tried again where the process has no descriptor left
_log = logging.getLogger("aiodist.store")


class Listener:
    """Calls `on_socket` with every connection, non-blocking, until closed.

    Args:
        sock: listens, and is non-blocking; the listener owns it.
    """

    def __init__(self, sock: socket.socket, on_socket: Callable[[socket.socket], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_socket = on_socket
        self._paused: asyncio.TimerHandle | None = None
        self._closed = False
        self._resume()

    def close(self) -> None:
        """Stop listening; connections stay. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(_AT_ONCE):
            if self._closed:
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("the store accepts nobody for %g s: %s", _PAUSE, error.strerror)
                self._loop.remove_reader(self._sock.fileno())
                self._paused = self._loop.call_later(_PAUSE, self._resume)
                return
            sock.setblocking(False)
            self._on_socket(sock)
