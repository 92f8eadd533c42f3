"""Log lines that say who was refused and why: one each, and never more than a few at a time."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from aiodist.base.sanitize import one_line
from aiodist.net.local_socket import credentials
from aiodist.net.records import RecordSocket
from aiodist.net.sockets import join_address

LINES = 5
"""Lines in a `PERIOD`."""

PERIOD = 10.0
"""Seconds."""


class Refusals:
    """The refusals of one listener.

    Args:
        log: where they are said, as warnings.
        clock: seconds, monotonic.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._until = 0.0
        self._said = 0
        self._unsaid = 0

    def say(self, who: str, why: str) -> None:
        """Log a refusal.

        Args:
            who: an address, or a process of this host.
            why: may hold an unauthenticated peer's text: what is not printable is replaced.
        """
        now = self._clock()
        if now >= self._until:
            self.log_omitted()
            self._until = now + PERIOD
            self._said = 0
        if self._said < LINES:
            self._said += 1
            self._log.warning("refused %s: %s", who, one_line(why))
        else:
            self._unsaid += 1

    def turned_away(self, sock: socket.socket | RecordSocket, why: str) -> None:
        """Log the refusal of a connection (see `Admission`)."""
        self.say(address_of(sock), why)

    def log_omitted(self) -> None:
        """Log how many were left out, if any."""
        if self._unsaid:
            self._log.warning("refused %d more", self._unsaid)
            self._unsaid = 0


def address_of(sock: socket.socket | RecordSocket) -> str:
    """The other end, in words."""
    try:
        if sock.family == socket.AF_UNIX:
            assert isinstance(sock, socket.socket)
            return f"pid {credentials(sock)[0]} of this host"
        host, port = sock.getpeername()[:2]
    except OSError:  # gone already
        return "an unknown address"
    return join_address(str(host), port)
