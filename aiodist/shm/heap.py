"""Allocation of the parts of a segment. Pure.

Pages cost nothing until they are touched and are never given back (a sealed arena cannot be cut), so the
heap reuses what was freed before it goes on: first fit, from the start.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGN = 64
"""Bytes of a cache line: every piece begins on one."""


class Heap:
    """Pieces of an address range.

    Args:
        start: the first byte.
        stop: the byte after the last one.
    """

    __slots__ = ("_free", "_sum", "_taken", "start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.start = -(-start // ALIGN) * ALIGN
        self.stop = stop
        self._free: list[tuple[int, int]] = [(self.start, stop)]  # (start, stop), in order, never touching
        self._taken: dict[int, int] = {}
        self._sum = 0

    def take(self, nbytes: int, align: int = ALIGN, stop: int | None = None) -> int:
        """The offset of a piece.

        Args:
            nbytes: its size; it gets the next multiple of `align`.
            align: what its offset is a multiple of; itself one of `ALIGN`.
            stop: it ends here at the latest; None: anywhere.

        Raises:
            MemoryError: no piece is large enough.
        """
        limit = self.stop if stop is None else stop
        # In whole steps of the alignment: else gaps stay between pieces, and each search goes through all.
        size = max(align, -(-nbytes // align) * align)
        for number, (start, end) in enumerate(self._free):
            at = -(-start // align) * align
            if at + size <= min(end, limit):
                rest = [(a, b) for a, b in ((start, at), (at + size, end)) if a < b]
                self._free[number : number + 1] = rest
                self._taken[at] = size
                self._sum += size
                return at
        raise MemoryError(f"no {nbytes} bytes left of {limit - self.start} that are shared")

    def free(self, at: int) -> None:
        """Give a piece back."""
        size = self._taken.pop(at)
        self._sum -= size
        start, stop = at, at + size
        number = bisect_left(self._free, (start, stop))
        if number < len(self._free) and self._free[number][0] == stop:
            stop = self._free.pop(number)[1]
        if number and self._free[number - 1][1] == start:
            number -= 1
            start = self._free.pop(number)[0]
        self._free.insert(number, (start, stop))

    def taken(self) -> int:
        """Bytes that are given out."""
        return self._sum
