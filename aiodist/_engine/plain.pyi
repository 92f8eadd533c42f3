"""Small plain values as bytes, and back, as `net/wire/objects.py` has them.

A value is plain that msgpack has types for: None, bool, int of up to 63 bits, float, str, bytes, lists and
dicts of these. What is not plain, not small, or no such encoding is left to Python, which knows all the rest
and says what is wrong. Nothing of what is encoded runs Python code meanwhile.
"""

from typing import Any

from typing_extensions import disjoint_base

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@disjoint_base
class Room:
    """Bytes that grow."""

def encode_plain(x: Any) -> bytes | None:
    """A small plain value as bytes; None of every other."""

def decode_plain(data: bytes | bytearray | memoryview, unless: Any) -> Any:
    """The value of which `encode_plain` made these bytes; `unless` where they are others."""
