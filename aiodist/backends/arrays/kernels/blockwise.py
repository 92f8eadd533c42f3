"""Blockwise quantisation of float32: each block of elements shares one scale, and has 8 or 4 bits an element.

Codes are signed integers, symmetric around zero: value ≈ code · scale, scale = largest magnitude of the block
/ 127 (8 bits) or / 7 (4 bits), so an error is at most half a scale. The format of n elements is the float32
scales of all blocks, then the codes; the last block may be shorter. With 4 bits a byte has an element of the
first half of its block in its low bits, and one of the second half in its high bits, so both halves stay
contiguous.

A block with a value that is not finite has NaN as its scale, and all its elements decode to NaN. The scale of
a block whose largest magnitude is below `TINY` is rounded up, as the float32 numbers there are far apart: at
the smallest ones an error is at most half of their distance (2**-149) more.

Source: T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022 (linear codes here).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays.kernels.unwarned import unwarned

Array = npt.NDArray[Any]

TINY = 1e-36
"""Largest magnitude of a block below which the inverse of its scale may be no float32."""

_STEP, _LIFT = (
    2.0**-149,
    np.float32(2.0**100),
)  # between the smallest float32 numbers; makes none of them small
LARGEST = np.finfo(np.float32).max
AT_ONCE = 1 << 16
"""Elements that are worked on at once: what they need stays in a core's cache."""


@dataclass(frozen=True)
class Blockwise:
    """A codec of float32 arrays, contiguous and of one axis.

    Args:
        bits: of an element, 8 or 4.
        block: elements that share a scale; even.
    """

    bits: int
    block: int

    @property
    def name(self) -> str:
        """'int8/1024': the bits, and the elements of a block."""
        return f"int{self.bits}/{self.block}"

    def blocks(self, count: int) -> int:
        """The number of blocks of so many elements."""
        return math.ceil(count / self.block)

    def nbytes(self, count: int) -> int:
        """The number of bytes of so many elements."""
        whole, rest = divmod(count, self.block)
        return 4 * self.blocks(count) + whole * self._code_bytes(self.block) + self._code_bytes(rest)

    def _code_bytes(self, count: int) -> int:
        return count if self.bits == 8 else (count + 1) // 2

    def scales(self, data: Array, count: int) -> Array:
        """The scales of encoded elements, float32; a view."""
        return data[: 4 * self.blocks(count)].view(np.float32)

    def may_overflow(self, data: Array, count: int) -> bool:
        """Whether elements may decode to what is not finite, though no scale says so: `encode` makes no such
        codes, but what came may hold any."""
        return bool((np.abs(self.scales(data, count)) > LARGEST / (1 << (self.bits - 1))).any())

    def encode(self, values: Array, data: Array, rest: Array | None = None) -> int:
        """Encode.

        Args:
            values: float32, read.
            data: uint8, `nbytes(values.size)` of them, written; it begins at a multiple of 4 bytes.
            rest: float32, as many as values, written: values minus what decodes of them; 0 where a block is
                not finite. May be `values` itself.

        Returns:
            the number of blocks that are not finite.
        """
        return int(unwarned.run(self._encode, values, data, rest))

    def _encode(self, values: Array, data: Array, rest: Array | None) -> int:
        scales, bad = self.scales(data, values.size), 0
        work = np.empty(min(values.size + self.block, AT_ONCE + self.block), np.float32)
        for first, start, stop, at in self._runs(values.size):
            block = min(self.block, stop - start)
            run, scale = (
                values[start:stop].reshape(-1, block),
                scales[first : first + (stop - start) // block],
            )
            room = work[: stop - start].reshape(-1, block)
            codes = self._coded(run, scale, room)
            self._pack(codes, data[at : at + self._code_bytes(block) * len(run)], block)
            poisoned = np.isnan(scale)
            bad += int(np.count_nonzero(poisoned))
            if rest is not None:
                np.copyto(room, codes)
                np.multiply(room, scale[:, None], out=room)
                left = rest[start:stop].reshape(-1, block)
                np.subtract(run, room, out=left)
                left[poisoned] = 0
        return bad

    def _coded(self, run: Array, scale: Array, room: Array) -> Array:
        """The codes of whole blocks, int8; their scales are written, and the room is used."""
        top = 127 if self.bits == 8 else 7
        np.maximum(np.maximum.reduce(run, axis=1), -np.minimum.reduce(run, axis=1), out=scale)
        poisoned, tiny = ~np.isfinite(scale), (scale < TINY) & (scale > 0)
        steps = np.ceil(scale[tiny].astype(np.float64) / (top * _STEP))
        scale /= np.float32(top)
        np.minimum(
            scale, np.nextafter(LARGEST / np.float32(top), np.float32(0)), out=scale
        )  # `top` of it is finite
        scale[tiny] = steps * _STEP
        scale[poisoned] = np.nan
        inverse = 1 / scale
        inverse[(scale == 0) | tiny | poisoned] = 0
        np.multiply(run, inverse[:, None], out=room)
        if steps.size:
            room[tiny] = (run[tiny] * _LIFT) * (1 / (scale[tiny] * _LIFT))[:, None]
        if poisoned.any():
            room[poisoned] = 0  # where a value was not finite, 0 times it is not 0
        np.rint(room, out=room)
        return room.astype(np.int8)

    def _pack(self, codes: Array, data: Array, block: int) -> None:
        if self.bits == 8:
            data.view(np.int8).reshape(-1, block)[...] = codes
            return
        half = (block + 1) // 2
        low, high = codes[:, :half].view(np.uint8), codes[:, half:].view(np.uint8)
        packed = data.reshape(-1, half)
        np.bitwise_and(low, 15, out=packed)
        packed[:, : block - half] |= high << 4

    def decode(self, data: Array, values: Array, *, add: bool = False) -> None:
        """Decode.

        Args:
            data: uint8, as `encode` wrote it.
            values: float32, written.
            add: add to what is there.
        """
        unwarned.run(self._decode, data, values, add)

    def _decode(self, data: Array, values: Array, add: bool) -> None:
        scales = self.scales(data, values.size)
        work = np.empty(min(values.size + self.block, AT_ONCE + self.block), np.float32)
        for first, start, stop, at in self._runs(values.size):
            block = min(self.block, stop - start)
            count = (stop - start) // block
            run, scale = values[start:stop].reshape(-1, block), scales[first : first + count, None]
            codes = self._unpacked(data[at : at + self._code_bytes(block) * count], block)
            room = work[: stop - start].reshape(-1, block) if add else run
            np.copyto(room, codes)
            np.multiply(room, scale, out=room)
            if add:
                np.add(run, room, out=run)

    def _unpacked(self, data: Array, block: int) -> Array:
        if self.bits == 8:
            return data.view(np.int8).reshape(-1, block)
        half = (block + 1) // 2
        packed = data.reshape(-1, half)
        codes = np.empty((len(packed), block), np.int8)
        np.left_shift(packed, 4, out=codes[:, :half].view(np.uint8))
        codes[:, :half] >>= 4  # the shift of a signed number keeps its sign
        np.right_shift(packed.view(np.int8)[:, : block - half], 4, out=codes[:, half:])
        return codes

    def _runs(self, count: int) -> list[tuple[int, int, int, int]]:
        """The runs of whole blocks to work on at once, and the last, shorter block: first block, first
        element, last one + 1, and where the codes begin, in bytes."""
        at, whole = 4 * self.blocks(count), count - count % self.block
        step = max(self.block, AT_ONCE // self.block * self.block)
        runs = []
        for start in [*range(0, whole, step), *([whole] if whole < count else [])]:
            stop = min(start + step, whole) if start < whole else count
            full = start // self.block
            runs.append((full, start, stop, at + full * self._code_bytes(self.block)))
        return runs
