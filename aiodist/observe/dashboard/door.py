"""Connections of those who have shown no session yet are few, and short.

aiohttp waits for the head of a request for as long as it takes. So each connection is closed after some
seconds unless a request on it was admitted meanwhile; and where there are too many that were not, the oldest
goes. Who opens connections in masses ends their own; a browser's requests take milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MOST = 64
"""Connections that nobody has been admitted on."""

MOST_ADMITTED = 128
PATIENCE = 10.0  # seconds for a connection to show a session


class Door:
    """The connections of a server.

    Args:
        make: makes aiohttp's part of a connection.
        most, patience: as the constants.
    """

    def __init__(
        self, make: Callable[[], asyncio.Protocol], most: int = MOST, patience: float = PATIENCE
    ) -> None:
        self._make = make
        self._most = most
        self._patience = patience
        self._waiting: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._admitted: set[asyncio.BaseTransport] = set()

    def __call__(self) -> asyncio.Protocol:
        """A new connection, for asyncio."""
        return _Connection(self._make(), self)

    def admit(self, transport: asyncio.BaseTransport | None) -> None:
        """Let a connection stay: a request on it has shown a session."""
        timer = self._waiting.pop(transport, None) if transport is not None else None
        if timer is not None and transport is not None:
            timer.cancel()
            if len(self._admitted) < MOST_ADMITTED:
                self._admitted.add(transport)
            else:
                self.came(transport)

    def came(self, transport: asyncio.BaseTransport) -> None:
        """Note a connection."""
        assert isinstance(transport, asyncio.Transport)
        while len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            assert isinstance(oldest, asyncio.Transport)
            self.went(oldest)
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._waiting[transport] = loop.call_later(self._patience, transport.abort)

    def went(self, transport: asyncio.BaseTransport) -> None:
        """Note that a connection has ended."""
        self._admitted.discard(transport)
        timer = self._waiting.pop(transport, None)
        if timer is not None:
            timer.cancel()


class _Connection(asyncio.Protocol):
    """A connection: all is aiohttp's, but for its beginning and its end."""

    def __init__(self, inner: asyncio.Protocol, door: Door) -> None:
        self._inner = inner
        self._door = door
        self._transport: asyncio.BaseTransport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._door.came(transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._door.went(self._transport)
        self._inner.connection_lost(exc)
