"""Connecting sockets, again where only a busy loop was in the way, how it failed, and what an address is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiodist.base.errors import GroupBroken
from aiodist.net.admission import PATIENCE
from aiodist.net.local_socket import connect_unix, is_other_user
from aiodist.net.sockets import describe

T = TypeVar("T")

DIAL_DEADLINE = 20.0
"""Seconds in which a connection must stand, and in which a handshake that is broken off is begun again."""

_AGAIN = 0.1  # seconds until the next attempt

_FULL_PAUSE = 0.005  # a Unix listener's backlog is full: unlike TCP, connect() refuses to wait


class Unanswered(ConnectionError):
    """The connection stood, and ended before the peer had proved itself."""


async def persist(dial: Callable[[], Awaitable[T]]) -> T:
    """Dial until it works, or fails for a reason that is none of a busy loop's.

    A listener waits only so long for the next message of a handshake. Where the loop of either side is busy
    meanwhile, the connection is closed, or time is over here, and both processes are well (law 5).

    Args:
        dial: one attempt.

    Raises:
        Unanswered: for `DIAL_DEADLINE` seconds every connection was ended at once.
        Whatever else `dial` raises.
    """
    loop = asyncio.get_running_loop()
    first: float | None = None  # since when attempts have failed at once
    while True:
        began = loop.time()
        try:
            return await dial()
        except (Unanswered, TimeoutError) as error:
            took = loop.time() - began
            if isinstance(error, TimeoutError) and took < DIAL_DEADLINE + 1.0:
                raise
            if first is None or took > PATIENCE:
                first = loop.time()
            elif loop.time() - first > DIAL_DEADLINE:
                raise
        await asyncio.sleep(_AGAIN)


async def connect_local(address: bytes) -> socket.socket:
    """A connection to a Unix socket at which this user listens; waits for as long as its backlog is full.

    Raises:
        PermissionError: another one does, a rank of another user or a thief, as names are free once a process
            died. It has no number, which would make it a fault of this process.
    """
    while True:
        try:
            sock = connect_unix(address)
            break
        except BlockingIOError:
            await asyncio.sleep(_FULL_PAUSE)
    if is_other_user(sock):
        sock.close()
        raise PermissionError("another user listens there")
    return sock


def cannot(error: BaseException) -> str:
    """The reason why a connection could not be made, in one line."""
    if isinstance(error, TimeoutError):
        return f"cannot connect to it within {DIAL_DEADLINE:g} s"
    return f"cannot connect to it ({describe(error)})"


def hung_up(rank: int, by: int) -> GroupBroken:
    """The error for a rank that ended a connection that `by` had dialed, after it had proved itself."""
    what = f"rank {rank} ended a connection with rank {by} before it was in use"
    return GroupBroken(what, hint="See what that rank says itself")
