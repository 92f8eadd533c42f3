"""The free blocks of a link. Pure."""

from __future__ import annotations

from aiodist.base.errors import WireError


class BlockPool:
    """A pool of at most 64 equal blocks, given out last freed first, because that one is still in the cache.

    Args:
        count: blocks in the pool.
    """

    __slots__ = ("_free", "_taken", "count")

    def __init__(self, count: int) -> None:
        if not 0 < count <= 64:
            raise ValueError(f"a pool has 1 to 64 blocks, got {count}")
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._taken = 0

    def __len__(self) -> int:
        """The number of free blocks."""
        return len(self._free)

    def take(self) -> int:
        """A free block; IndexError where there is none."""
        block = self._free.pop()
        self._taken |= 1 << block
        return block

    def release(self, blocks: int) -> None:
        """Free blocks, given as a bit set.

        Raises:
            WireError: one of them was not taken. (It is a peer that says which.)
        """
        if not blocks or blocks & ~self._taken:
            raise WireError(f"blocks {blocks:#x} released, of which {blocks & ~self._taken:#x} were free")
        self._taken &= ~blocks
        while blocks:
            low = blocks & -blocks
            self._free.append(low.bit_length() - 1)
            blocks ^= low
