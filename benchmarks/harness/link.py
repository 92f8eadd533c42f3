"""JSON messages over a stream socket between the driver and a rank: four bytes of length, then text."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any


class AbsentError(Exception):
    """The error that a peer cannot do what was ordered; says why. It travels from the rank to the driver."""


_LENGTH = struct.Struct("!I")


def pack(message: Any) -> bytes:
    """A message as it travels."""
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def receive(sock: socket.socket) -> Any:
    """Block in the kernel until a message is there; EOFError where the other end has gone."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return json.loads(_exactly(sock, length))


async def receive_async(sock: socket.socket) -> Any:
    """The same on a loop, from a non-blocking socket."""
    (length,) = _LENGTH.unpack(await _exactly_async(sock, _LENGTH.size))
    return json.loads(await _exactly_async(sock, length))


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


async def _exactly_async(sock: socket.socket, length: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < length:
        piece = await loop.sock_recv(sock, length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
