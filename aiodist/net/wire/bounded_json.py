"""Reading JSON from others at a cost in proportion to its size. Pure.

An empty list takes two bytes of text and 64 in memory, and the parser lets no other thread run meanwhile. So
the parts are counted first, which takes a hundredth of the time.
"""

from __future__ import annotations

import json
from typing import Any

_FEW = 1000


def load_json(data: bytes, largest: int, *, spread: int = 8) -> Any:
    """The value of `json.loads`.

    Args:
        data: the text.
        largest: bytes that it may have.
        spread: bytes to each container, and to each two items, at least; beyond a thousand of each.

    Raises:
        ValueError: it is none, or too large, or has too many parts.
        RecursionError: it is nested too deep.
    """
    if len(data) > largest:
        raise ValueError(f"{len(data)} bytes of JSON, where at most {largest} are expected")
    if len(data) > _FEW:
        containers = data.count(b"[") + data.count(b"{")
        items = data.count(b",") + containers
        if containers > _FEW + len(data) // spread or items > _FEW + 2 * len(data) // spread:
            raise ValueError(f"{len(data)} bytes of JSON with {items} parts: too many for its size")
    return json.loads(data)
