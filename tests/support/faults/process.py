"""The driver's end of a rank process: orders for it, what it says, and its end. Linux."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from aiodist.testing.forkserver import Forked
from tests.support.faults.rank import PACKET


class RankProcess:
    """One process that takes orders and faults.

    Args:
        process: this object's from here on, as is
        sock: the socket to it.

    Attributes:
        heard: called with each message; with None once, when the process is gone.
        gone: whether its end has been heard.
        unresponsive: whether it was sent SIGKILL or SIGSTOP: it obeys no more.
    """

    def __init__(self, process: Forked, sock: socket.socket) -> None:
        self.process = process
        self.gone = False
        self.unresponsive = False
        self.heard: Callable[[dict[str, Any] | None], None] = lambda message: None
        self._sock = sock
        self._sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def order(self, message: Mapping[str, Any]) -> None:
        """Send an order; it is carried out when those before it have been."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end will be heard
            self._sock.send(json.dumps(message).encode())

    def close(self) -> None:
        """Kill it, wait for its end and let go of the descriptors."""
        self.process.end()
        self._hang_up()

    def _readable(self) -> None:
        while not self.gone:
            try:
                packet = self._sock.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if packet:
                self.heard(json.loads(packet))
            else:
                self._hang_up()
                self.heard(None)

    def _hang_up(self) -> None:
        if not self.gone:
            self.gone = True
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
