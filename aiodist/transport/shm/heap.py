"""Allocation of the parts of a segment. Pure.

Pages cost nothing until they are touched and are never given back (a sealed arena cannot be cut), so the
heap reuses what was freed before it goes on: first fit, from the start.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGN = 64
"""Bytes of a cache line: every piece begins on one."""

PAGE = 4096
"""Bytes of a page of memory. A piece of that size or more is large."""

APART = 2048
"""Where in its page a large piece begins. The allocators of NumPy, torch and the C library begin large arrays
a few bytes into a page. A copy whose target lies up to 64 bytes further into its page than its source is 5 to
7 times slower on AMD's Zen 3 (`rep movsb`: 16 MiB took 13 ms, and 1.8 else), since its loads wait for stores
that only seem to be at the same place. Half a page apart neither direction comes close."""


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

    def take(self, nbytes: int, align: int = ALIGN, stop: int | None = None, skew: int = 0) -> int:
        """The offset of a piece.

        Args:
            nbytes: its size; it gets the next multiple of `align`.
            align: what its offset is a multiple of, plus `skew`; multiples of `ALIGN`.
            stop: it ends here at the latest; None: anywhere.

        Raises:
            MemoryError: no piece is large enough.
        """
        limit = self.stop if stop is None else stop
        # In whole steps of the alignment: else gaps stay between pieces, and each search goes through all.
        size = max(align, -(-nbytes // align) * align)
        for number, (start, end) in enumerate(self._free):
            at = -(-(start - skew) // align) * align + skew
            if at + size <= min(end, limit):
                rest = [(a, b) for a, b in ((start, at), (at + size, end)) if a < b]
                self._free[number : number + 1] = rest
                self._taken[at] = size
                self._sum += size
                return at
        raise MemoryError(f"no {nbytes} bytes left of {limit - self.start} that are shared")

    def take_large(self, nbytes: int, stop: int | None = None) -> int:
        """The offset of a piece that large arrays are copied from and to: see `APART`. Else as `take`."""
        return self.take(nbytes, PAGE, stop, APART)

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
