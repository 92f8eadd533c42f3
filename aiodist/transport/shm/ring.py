"""Where the two rings of a link lie: an area in each process's segment, which the other reads.

`_engine/ring.h` has the layout; the engine appends and takes.
"""

from __future__ import annotations

from aiodist.transport.shm.heap import ALIGN

RING = 64 * 1024
"""Bytes of records that a ring has room for, where it bears messages."""

WORDS = 8
"""The words of an area that are the user's."""

ADDRESS, WORDS_AT, RECORDS = 16, 2 * ALIGN, 3 * ALIGN
"""Where an area has the address of its owner's memory, the user's words, the records."""


def area_bytes(size: int) -> int:
    """Bytes of an area with a ring of `size` bytes."""
    return RECORDS + size


def clear(view: memoryview, at: int, address: int = 0) -> None:
    """Make an area of this process's memory empty, before the other process hears of it.

    Args:
        address: of `view`.
    """
    view[at : at + RECORDS] = bytes(RECORDS)
    view[at + ADDRESS : at + ADDRESS + 8] = address.to_bytes(8, "little")


def address_in(view: memoryview, at: int) -> int:
    """Where the owner of an area has its memory in its address space."""
    return int.from_bytes(view[at + ADDRESS : at + ADDRESS + 8], "little")


def words_of(view: memoryview, at: int) -> memoryview:
    """The user's words of an area, of 64 bits."""
    return view[at + WORDS_AT : at + WORDS_AT + 8 * WORDS].cast("Q")
