"""Takes connections from listening sockets, without a transport for each; the silent ones wait in a lobby."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from aiodist.net.lobby import Enter, Lobby, Turned

_AT_ONCE = 64  # connections that one turn of the loop accepts: about 5 ms of work when 1,000 come together
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds until it is tried again where the process has no descriptor left
_log = logging.getLogger("aiodist.store")


class Listener:
    """Calls `on_socket` with every connection that has something to say, non-blocking, until closed.

    Args:
        socks: listen, and are non-blocking; the listener owns them.
        on_socket: see `Lobby`.
        turned_away: see `Lobby`.
    """

    def __init__(self, socks: list[socket.socket], on_socket: Enter, turned_away: Turned) -> None:
        self._loop = asyncio.get_running_loop()
        self._socks = socks
        self._lobby = Lobby(self._loop, on_socket, turned_away)
        self._paused: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop listening; connections that were handed over stay. May be called again."""
        if self._paused is not None:
            self._paused.cancel()
        self._pause()
        for sock in self._socks:
            sock.close()
        self._socks = []
        self._lobby.close()

    def _resume(self) -> None:
        self._paused = None
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
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("the store accepts nobody for %g s: %s", _PAUSE, error.strerror)
                self._pause()
                self._paused = self._loop.call_later(_PAUSE, self._resume)
                return
            sock.setblocking(False)
            self._lobby.add(sock)
