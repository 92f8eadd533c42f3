"""The pieces in which a quantised all_reduce travels, as numbers. Pure: the same on all ranks.

A tensor is cut into pieces, so that one is encoded while the one before it is on its way. Each piece is cut
into a share for each rank, which that rank sums. A share begins at a whole block of the codec where the piece
is long enough, so that no block belongs to two ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from aiodist.backends.arrays.kernels.blockwise import Blockwise

AT_ONCE = 1 << 20
"""Elements of a piece. At 1 Gbit/s it is 8 ms on its way, and takes about 3 ms to encode."""

NOTE = 8
"""Bytes before an encoded sum, which say what was not finite: see `group/quantized`."""


@dataclass(frozen=True)
class QuantizedPiece:
    """A part of the tensor.

    Args:
        bounds: of each rank's share, in elements of the tensor: rank r has `bounds[r]` to `bounds[r + 1]`.
        nbytes: of each rank's share when it is encoded; a multiple of 4, so that what follows is aligned.
    """

    bounds: tuple[int, ...]
    nbytes: tuple[int, ...]

    def share(self, rank: int) -> slice:
        """A rank's share, as elements of the tensor."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


@lru_cache(64)
def pieces(count: int, size: int, codec: Blockwise) -> tuple[QuantizedPiece, ...]:
    """Cut a tensor of so many elements, for so many ranks. There is at least one piece; it may be empty."""
    long = max(1, AT_ONCE // (size * codec.block)) * size * codec.block
    return tuple(
        _piece(start, min(start + long, count), size, codec) for start in range(0, count, long) or [0]
    )


def _piece(start: int, stop: int, size: int, codec: Blockwise) -> QuantizedPiece:
    count = stop - start
    unit = codec.block if count >= size * codec.block else 2
    each = -(-count // (size * unit)) * unit
    bounds = [min(start + rank * each, stop) for rank in range(size + 1)]
    nbytes = [-(-codec.nbytes(high - low) // 4) * 4 for low, high in pairwise(bounds)]
    return QuantizedPiece(tuple(bounds), tuple(nbytes))
