"""Rings of records in shared memory: one process appends, one other takes, in order. Pure.

Two processes that exchange records have an *area* each, in their own memory, which the other maps read-only:

    at         8 bytes: the head, which counts all bytes that were ever appended to this ring
    at + 8     8 bytes: 1 while the producer waits for room
    at + 16    8 bytes: where this process has its memory in its own address space
    at + 64    8 bytes: how many bytes this process has taken of the other's ring
    at + 128   8 words that are the user's
    at + 192   the records, each padded to a multiple of 8, none of which goes around the end: what is left
               there is skipped, and a record whose first byte is 0 says so

The head is written after the record, and read before it: on x86-64 stores and loads stay in that order.
"""

from __future__ import annotations

from aiodist.base.errors import WireError
from aiodist.transport.shm.heap import ALIGN

RING = 64 * 1024
"""Bytes of records that a ring has room for, where it bears messages."""

WORDS = 8
"""The words of an area that are the user's."""

_WAITS, _ADDRESS, _TAKEN, _WORDS, _RECORDS = 8, 16, ALIGN, 2 * ALIGN, 3 * ALIGN


def area_bytes(size: int) -> int:
    """Bytes of an area with a ring of `size` bytes."""
    return _RECORDS + size


class Producer:
    """The end of a ring that appends.

    Args:
        view, at: this process's memory, and its area there, a multiple of `ALIGN`; cleared here.
        size: bytes of records, a multiple of 8.
        theirs, theirs_at: the consumer's memory and its area.
    """

    __slots__ = ("_head", "_records", "_size", "_taken", "_taken_word", "_waits", "_word")

    def __init__(self, view: memoryview, at: int, size: int, theirs: memoryview, theirs_at: int) -> None:
        self._word = view[at : at + 8].cast("Q")
        self._waits = view[at + _WAITS : at + _WAITS + 8].cast("Q")
        self._records = view[at + _RECORDS : at + _RECORDS + size]
        self._size = size
        self._taken_word = theirs[theirs_at + _TAKEN : theirs_at + _TAKEN + 8].cast("Q")
        self._head = self._taken = 0

    def append(self, header: bytes, payload: memoryview) -> bool:
        """Append a record → False where there is no room for it now.

        Args:
            header: its first byte is not 0, and its length a multiple of 8.
            payload: the rest of the record; copied. In all it is at most half of the ring: an empty one has
                room for that, wherever it stands.

        Raises:
            WireError: the consumer says that it has taken what is not there.
        """
        head, whole = self._head, self._size
        begin = head % whole
        size = len(header) + len(payload)
        padded = (size + 7) & ~7
        skipped = whole - begin if begin + padded > whole else 0
        if head + skipped + padded - self._taken > whole and not self._room(skipped + padded):
            return False
        records = self._records
        if skipped:
            records[begin] = 0
            begin = 0
        middle = begin + len(header)
        records[begin:middle] = header
        records[middle : begin + size] = payload
        self._head = self._word[0] = head + skipped + padded
        return True

    def _room(self, nbytes: int) -> bool:
        """Look what was taken → whether there is room for so many bytes."""
        taken = self._taken_word[0]
        if not self._taken <= taken <= self._head:
            raise WireError(f"{taken} bytes of a ring taken, after {self._taken}, of {self._head}")
        self._taken = taken
        return self._head + nbytes - taken <= self._size

    def wait(self, waits: bool) -> None:
        """Say whether this end waits for room. Who says so looks again afterwards."""
        self._waits[0] = waits


class Consumer:
    """The end of a ring that takes.

    Args:
        view, at: the producer's memory, and its area there.
        size: bytes of records.
        mine, mine_at: this process's memory and its area.

    Attributes:
        taken: bytes taken since the beginning.
    """

    __slots__ = ("_records", "_size", "_taken_word", "_waits", "_word", "taken")

    def __init__(self, view: memoryview, at: int, size: int, mine: memoryview, mine_at: int) -> None:
        self._word = view[at : at + 8].cast("Q")
        self._waits = view[at + _WAITS : at + _WAITS + 8].cast("Q")
        self._records = view[at + _RECORDS : at + _RECORDS + size]
        self._size = size
        self._taken_word = mine[mine_at + _TAKEN : mine_at + _TAKEN + 8].cast("Q")
        self.taken = 0

    def waiting(self) -> bool:
        """Whether there is something to take."""
        return self._word[0] != self.taken

    def head(self) -> int:
        """How far the ring is filled, in bytes since the beginning."""
        return self._word[0]

    def first(self) -> memoryview:
        """The memory from the first record on that was not taken, to its end at least; only while `waiting`.

        Valid until `took`. The other process could change it meanwhile, by mistake.

        Raises:
            WireError: no ring can look like this.
        """
        whole = self._size
        ahead = self._word[0] - self.taken
        begin = self.taken % whole
        if 0 < ahead <= whole and not ahead & 7:
            if not self._records[begin]:
                ahead -= whole - begin
                self.taken += whole - begin
                begin = 0
            if ahead > 0:
                return self._records[begin : begin + min(ahead, whole - begin)]
        raise WireError(f"a ring whose head is {ahead} bytes ahead")

    def took(self, nbytes: int) -> None:
        """Take a record of so many bytes, at most as many as `first` gave: its memory is the producer's."""
        self.taken += (nbytes + 7) & ~7
        self._taken_word[0] = self.taken

    def awaited(self) -> bool:
        """Whether the producer waits for room."""
        return bool(self._waits[0])


def clear(view: memoryview, at: int, address: int = 0) -> None:
    """Make an area of this process's memory empty, before the other process hears of it.

    Args:
        address: of `view`.
    """
    view[at : at + _RECORDS] = bytes(_RECORDS)
    view[at + _ADDRESS : at + _ADDRESS + 8] = address.to_bytes(8, "little")


def address_in(view: memoryview, at: int) -> int:
    """Where the owner of an area has its memory in its address space."""
    return int.from_bytes(view[at + _ADDRESS : at + _ADDRESS + 8], "little")


def words_of(view: memoryview, at: int) -> memoryview:
    """The user's words of an area, of 64 bits."""
    return view[at + _WORDS : at + _WORDS + 8 * WORDS].cast("Q")
