"""Values on their way between a test's process and its ranks, as pickles in a folder that is theirs alone."""

from __future__ import annotations

import pickle
from typing import Any


def pack(value: object) -> bytes:
    """A value as bytes. Raises whatever the value's own code raises where it cannot be pickled."""
    return pickle.dumps(value)


def unpack(data: bytes) -> Any:
    """The value. Never of bytes that another user could have written: pickles run code."""
    return pickle.loads(data)
