"""The local socket of a store: a Unix socket beside its TCP port, for clients on its host (Linux).

A message over loopback TCP takes 5 µs more than over a Unix socket, each way; that is a third of a round
trip. So a store listens on an abstract Unix address that its TCP address names, too, and clients try that
first. Abstract addresses live in the network namespace, as loopback does, and end with the socket: there
is no file to be left behind. The process at the other end must run under this process's user, or it
is left alone; the handshake follows all the same.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

from aiodist.base.environment import is_loopback
from aiodist.base.environment.user import is_me
from aiodist.net.sockets import connect, join_address, listen_on, resolve, stream_socket

CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end, as the kernel says."""


def listen_local(host: str, port: int) -> socket.socket | None:
    """A non-blocking socket that listens beside a TCP address of this process; None where none can."""
    if sys.platform != "linux":
        return None
    try:
        return listen_on(socket.AF_UNIX, local_address(host, port))
    except OSError:
        return None


async def connect_to_store(host: str, port: int) -> tuple[socket.socket, str]:
    """A connection to the store at an address, local if it can be → it, this host's address on it.

    `OSError` where nobody listens.
    """
    if sys.platform == "linux":
        for _, address in await resolve(host, port):
            if (sock := _connect_local(str(address[0]), port)) is not None:
                # The address that a TCP connection to this very host would have here.
                loopback = is_loopback(address[0]) and ":" not in address[0]
                return sock, "127.0.0.1" if loopback else str(address[0])
    sock = await connect(host, port)
    return sock, str(sock.getsockname()[0])


def _connect_local(host: str, port: int) -> socket.socket | None:
    try:
        sock = connect_unix(local_address(host, port))
    except OSError:
        return None
    if is_me(credentials(sock)[1]):
        return sock
    sock.close()
    return None


def connect_unix(address: str | bytes) -> socket.socket:
    """A connection to a Unix socket, at once or not at all: `BlockingIOError` where its backlog is full."""
    sock = stream_socket(socket.AF_UNIX)
    try:
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def is_other_user(sock: socket.socket) -> bool:
    """Whether the other end of a Unix connection runs under another user; that of a TCP connection does not
    come this way. No process of the job does: `connect_to_store` leaves such a server alone, too."""
    if sock.family != socket.AF_UNIX:
        return False
    user = credentials(sock)[1]
    return user != -1 and not is_me(user)


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of a Unix connection's other end; -1 each where the system does not say."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid, user, group = CREDENTIALS.unpack(packed)
            return pid, user, group
    return -1, -1, -1


def local_address(host: str, port: int) -> str:
    """The local socket beside a TCP address."""
    return f"\0aiodist store {join_address(host, port)}"
