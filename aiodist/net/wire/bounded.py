"""Reading msgpack from others without trusting the lengths that it claims. Pure.

msgpack makes room for a list when it reads how long it is said to be. Lists in lists that all claim to be as
long as the message allows therefore take 8 bytes for each byte of the message, a thousand times over: 64 KiB
took half a GiB, and 1 MiB took 8 GiB and 20 seconds. (msgpack 1.2 makes less room at a time; that is still
tens of MiB.) So a longer message is gone through first, which builds nothing: where it is whole, its lengths
are true, and what it takes is in proportion to its size.
"""

from __future__ import annotations

from typing import Any

import msgpack

SHORT = 1024
"""Bytes. Nothing in so short a message can claim more than a few MiB, or hold many keys."""


def unpack(data: bytes | memoryview, **how: Any) -> Any:
    """The value of `msgpack.unpackb`, with its keyword arguments and errors; any of these says: nonsense."""
    if len(data) > SHORT:
        size = len(data)
        scanner = msgpack.Unpacker(read_size=size, max_buffer_size=size)
        scanner.feed(data)
        scanner.skip()  # OutOfData where it is not whole
    return msgpack.unpackb(data, **how)
