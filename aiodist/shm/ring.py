"""Rings of records in a shared segment: one process appends, one other takes, in order. Pure.

    at        8 bytes: the head, which counts all bytes that were ever appended
    at + 64   `RING` bytes of records, each padded to a multiple of 8, none of which goes around the end: what
              is left there is skipped, and a record whose first byte is 0 says so

The head is written after the record, and read before it: on x86-64 stores and loads stay in that order. The
consumer writes nothing here. It tells, by other means, how much it has taken.
"""

from __future__ import annotations

from aiodist.errors import WireError
from aiodist.shm.heap import ALIGN

RING = 64 * 1024
"""Bytes of records that a ring has room for."""

RING_BYTES = ALIGN + RING
"""Bytes of memory that a ring takes."""


class Producer:
    """The end of a ring that appends, in this process's own segment.

    Args:
        view: the segment.
        at: offset of the ring, a multiple of `ALIGN`; its memory may hold anything.
    """

    __slots__ = ("_head", "_records", "_taken", "_word")

    def __init__(self, view: memoryview, at: int) -> None:
        self._word = view[at : at + 8].cast("Q")
        self._records = view[at + ALIGN : at + RING_BYTES]
        self._head = self._taken = self._word[0] = 0

    def append(self, header: bytes, payload: memoryview) -> bool:
        """Append a record → False where there is no room for it now.

        Args:
            header: its first byte is not 0, and its length a multiple of 8.
            payload: the rest of the record; copied. In all it is at most half of `RING`: an empty ring has
                room for that, wherever it stands.
        """
        head, begin = self._head, self._head % RING
        size = len(header) + len(payload)
        padded = (size + 7) & ~7
        skipped = RING - begin if begin + padded > RING else 0
        if head + skipped + padded - self._taken > RING:
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

    def took(self, total: int) -> None:
        """Note how much the consumer has taken, in bytes since the beginning.

        Raises:
            WireError: it cannot have.
        """
        if not self._taken < total <= self._head:
            raise WireError(f"{total} bytes of a ring taken, after {self._taken}, of {self._head}")
        self._taken = total

    @property
    def empty(self) -> bool:
        """Whether all was taken, as far as the consumer has told."""
        return self._taken == self._head


class Consumer:
    """The end of a ring that takes, in another process's segment.

    Args:
        view: the segment.
        at: offset of the ring.

    Attributes:
        taken: bytes taken since the beginning.
    """

    __slots__ = ("_records", "_word", "taken")

    def __init__(self, view: memoryview, at: int) -> None:
        self._word = view[at : at + 8].cast("Q")
        self._records = view[at + ALIGN : at + RING_BYTES]
        self.taken = 0

    def waiting(self) -> bool:
        """Whether there is something to take."""
        return self._word[0] != self.taken

    def first(self) -> memoryview:
        """The memory from the first record on that was not taken, to its end at least; only while `waiting`.

        Valid until `took`. The other process could change it meanwhile, by mistake.

        Raises:
            WireError: no ring can look like this.
        """
        ahead = self._word[0] - self.taken
        begin = self.taken % RING
        if 0 < ahead <= RING and not ahead & 7:
            if not self._records[begin]:
                ahead -= RING - begin
                self.taken += RING - begin
                begin = 0
            if ahead > 0:
                return self._records[begin : begin + min(ahead, RING - begin)]
        raise WireError(f"a ring whose head is {ahead} bytes ahead")

    def took(self, nbytes: int) -> None:
        """Take a record of so many bytes, at most as many as `first` gave."""
        self.taken += (nbytes + 7) & ~7
