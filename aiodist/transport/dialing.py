"""Connecting sockets, how it failed, and what an address is."""

from __future__ import annotations

import asyncio
import socket

from aiodist.errors import AiodistError

DIAL_DEADLINE = 20.0
"""Seconds in which a connection must stand."""

_FULL_PAUSE = 0.005  # a Unix listener's backlog is full: unlike TCP, connect() refuses to wait


async def connect_unix(address: bytes) -> socket.socket:
    """A connection to a Unix socket; waits for as long as its backlog is full."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(address)
                return sock
            except BlockingIOError:
                await asyncio.sleep(_FULL_PAUSE)
    except BaseException:
        sock.close()
        raise


async def connect_tcp(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A TCP connection to a numeric address."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def is_numeric(host: str) -> bool:
    """Whether this is an address, not a name."""
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return False
    return True


def cannot(error: BaseException) -> str:
    """Why a connection could not be made, in one line."""
    if isinstance(error, TimeoutError):
        return f"cannot connect to it within {DIAL_DEADLINE:g} s"
    words = (
        error.message if isinstance(error, AiodistError) else getattr(error, "strerror", None) or str(error)
    )
    return f"cannot connect to it ({words})"
