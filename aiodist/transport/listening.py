"""Listening sockets, and taking connections from them as long as their owner wants more."""

from __future__ import annotations

import asyncio
import secrets
import socket

from aiodist.errors import RendezvousError
from aiodist.net.lobby import Enter, Lobby, Turned

BACKLOG = 1024

_AT_ONCE = 16  # connections that one turn of the loop accepts: a crowd must not hold it
_PAUSE = 0.1  # seconds without accepting when the process is out of descriptors


class Acceptor:
    """Takes connections from any number of listeners. Nothing is accepted before `resume`.

    Args:
        loop: the event loop.
        welcome: called with each new, non-blocking connection that has something to say; see `Lobby`.
        turned_away: called with each that had not; see `Lobby`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, welcome: Enter, turned_away: Turned) -> None:
        self._loop = loop
        self._lobby = Lobby(loop, welcome, turned_away)
        self._listeners: list[socket.socket] = []
        self._accepting = False

    def listen_tcp(self, host: str) -> int:
        """Listen on a free port of exactly `host`, a numeric address; returns the port.

        Raises:
            RendezvousError: it is no address of this host.
        """
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, 0))
            self._add(sock)
        except OSError as error:
            sock.close()
            self.close()
            raise not_mine(host, error) from error
        port: int = sock.getsockname()[1]
        return port

    def listen_unix(self) -> bytes:
        """Listen under a fresh name in the abstract namespace of Unix sockets (Linux), which leaves no
        file behind; returns the name."""
        name = b"aiodist-" + secrets.token_hex(16).encode()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(unix_address(name))
            self._add(sock)
        except BaseException:
            sock.close()
            self.close()
            raise
        return name

    def resume(self) -> None:
        """Accept (again). Nothing happens after `close`."""
        if not self._accepting and self._listeners:
            self._accepting = True
            for listener in self._listeners:
                self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Stop listening; who has said nothing is cut off. May be called twice."""
        self._pause()
        self._lobby.close()
        while self._listeners:
            self._listeners.pop().close()

    def _add(self, sock: socket.socket) -> None:
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._listeners.append(sock)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            if not self._loop.is_closed():
                for listener in self._listeners:
                    self._loop.remove_reader(listener.fileno())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._accepting:
                return
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError:
                # Out of descriptors, most likely. The backlog keeps the others; try again soon.
                self._pause()
                self._loop.call_later(_PAUSE, self.resume)
                return
            sock.setblocking(False)
            self._lobby.add(sock)


def unix_address(name: bytes) -> bytes:
    """The address of an abstract socket."""
    return b"\0" + name


def not_mine(host: str, error: OSError) -> RendezvousError:
    """What to raise when an address cannot be listened on."""
    return RendezvousError(
        f"cannot listen on {host} ({error.strerror or error})",
        hint="Set AIODIST_HOST to an address of this host that its peers can reach",
    )
