"""Many small shapes, each of which comes once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

MOST = 256
"""Elements of an array at most: 1 KiB of float32."""

Shape = tuple[int, int, int]


def shapes(first: int, count: int) -> list[Shape]:
    """The shapes from number `first` on; no two numbers have the same, and all mix small and larger ones."""
    return list(islice(_all(), first, first + count))


def _all() -> Iterator[Shape]:
    """All triples whose product is small enough; neighbours differ in their number of elements."""
    for height in range(1, MOST + 1):
        for width in range(1, MOST // height + 1):
            for depth in range(1, MOST // (height * width) + 1):
                yield depth, width, height
