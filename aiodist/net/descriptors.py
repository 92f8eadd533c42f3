"""Descriptors that come over a Unix socket, beside bytes.

They are closed in children from the start (MSG_CMSG_CLOEXEC, which `socket.recv_fds` leaves out): a program
that another thread starts meanwhile would inherit them, and keep a process's memory, or a connection, alive.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence

_HEAD = 8  # bytes that say how long a message is
_INT = struct.calcsize("i")
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def receive(sock: socket.socket, nbytes: int, most: int) -> tuple[bytes, list[int]]:
    """Receive at most `nbytes` bytes, and the descriptors beside them, which are the caller's to close.

    Args:
        most: descriptors that are expected; there may be one more (room for them comes in pairs), and the
            kernel closes what goes beyond.

    Raises:
        OSError: as `socket.recvmsg`; `BlockingIOError` where nothing is there. EMFILE where fewer than `most`
            could be taken of those that came: none is then.
    """
    data, ancillary, flags, _address = sock.recvmsg(nbytes, socket.CMSG_SPACE(most * _INT), _CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) // _INT * _INT])
    if flags & socket.MSG_CTRUNC and len(descriptors) < most:  # there was room for them to be named
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(descriptors)


def send_message(sock: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send bytes of any number, and descriptors beside them, which stay the caller's. See `receive_message`.

    Args:
        sock: blocking, of streams.
        data: the bytes.
        descriptors: at least one.
    """
    socket.send_fds(sock, [len(data).to_bytes(_HEAD, "big")], descriptors)
    sock.sendall(data)


def receive_message(sock: socket.socket, most: int) -> tuple[bytes, list[int]] | None:
    """Receive what `send_message` has sent, with at most so many descriptors; None: the other end is gone."""
    head, descriptors = receive(sock, _HEAD, most)
    if len(head) < _HEAD:
        return None
    length, data = int.from_bytes(head, "big"), bytearray()
    while len(data) < length:
        part = sock.recv(min(1 << 16, length - len(data)))
        if not part:
            return None
        data += part
    return bytes(data), descriptors
