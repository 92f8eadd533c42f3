"""float16 and bfloat16: widened to float32, computed, and narrowed, in blocks that stay in the cache.

Widening is exact, narrowing rounds to nearest even, and a sum of two halves has one right value; so they may
be computed in any way. Where torch is loaded anyway, its casts and its addition serve, at several times the
speed of NumPy's. Nothing else of torch does: a rank with it and a rank without must get the same bits
(law 3), down to the sign of `min(0, -0)`. Only of a NaN the sign and payload may differ.

Nanoseconds per element (NumPy 2.4, ml_dtypes 0.5, torch 2.13, one core of an x86-64 cloud machine):

                         float16   bfloat16
    widen:  NumPy's cast   1.4       0.11
            look-up        0.64
            torch          0.19                with the copy to its scratch
    add:    NumPy          0.09      0.09      in float32
    narrow: NumPy's cast   2.5       0.42
            integers       1.2
            torch          0.17      0.23      with the copy from its scratch
    add halves by torch    0.18      0.23
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.types import BFLOAT16

Array = npt.NDArray[Any]

# Elements that are widened at a time: two blocks of float32 fit the L2 cache; and less than 32768, from
# which on torch would use several threads.
BLOCK = 24 * 1024

_FLOAT16 = np.dtype(np.float16)
_FEW = 8192  # elements, below which what costs many calls does not pay


class Halves(threading.local):
    """The scratch of each thread.

    Attributes:
        wide: two blocks of float32, the operands. Results belong into the first.
    """

    def __init__(self) -> None:
        self.wide = np.empty((2, BLOCK), np.float32)
        self._bits = np.empty((2, BLOCK), np.uint16)
        self._casts: _Casts | None = None

    def widen(self, half: Array, side: int) -> Array:
        """`half` (1-D, at most BLOCK elements) as float32: the beginning of `wide[side]`."""
        wide = self.wide[side, : half.size]
        if half.dtype == BFLOAT16:
            np.copyto(wide, half)
        elif half.size >= _FEW and torch_serves():
            self._torch().widen(half, side)
        else:
            # mode: the default checks bounds through a buffer; 16 bits cannot exceed the table
            np.take(_values(), half.view(np.uint16), out=wide, mode="wrap")
        return wide

    def narrow(self, half: Array) -> None:
        """`half` from the beginning of `wide[0]`, rounded to nearest even. Spoils `wide[1]`."""
        wide = self.wide[0, : half.size]
        many = half.size >= _FEW
        if many and torch_serves():
            self._torch().narrow(half)
        elif not many or half.dtype == BFLOAT16 or not self._round(wide, half):
            np.copyto(half, wide, casting="unsafe")

    def _torch(self) -> _Casts:
        if self._casts is None:
            self._casts = _Casts(self.wide)
        return self._casts

    def _round(self, wide: Array, half: Array) -> bool:
        """Round to float16 by integer steps → whether it could: not a block with magnitudes from 65536 on.

        Adding 2**13 times a number's power of two to it has the adder round it to the 11 bits of float16,
        and leaves them in the low bits of the sum. The power is at least 2**-14, as subnormals are spaced
        like that.
        """
        signs, powers = self._bits[:, : half.size]
        total = self.wide[1, : half.size]
        bits = total.view(np.uint32)
        np.right_shift(wide.view(np.uint32), 16, out=bits)
        np.copyto(signs, bits, casting="unsafe")
        np.bitwise_and(signs, 0x7F80, out=powers)  # the exponents, placed as in bfloat16
        if np.maximum.reduce(powers) >= (127 + 16) << 7:
            return False
        np.maximum(powers, _least()[: half.size], out=powers)
        np.add(powers, 13 << 7, out=powers)
        np.bitwise_and(signs, 0x8000, out=signs)
        np.bitwise_or(powers, signs, out=powers)  # of the number's sign, so that nothing cancels
        np.copyto(bits, powers)
        np.left_shift(bits, 16, out=bits)
        np.add(total, wide, out=total)
        result = half.view(np.uint16)
        np.copyto(result, bits, casting="unsafe")
        np.left_shift(powers, 3, out=powers)  # the exponents, placed as in float16; the sign falls out
        np.add(result, powers, out=result)
        np.subtract(result, (126 << 10) & 0xFFFF, out=result)  # the biases; all modulo 2**16
        np.bitwise_or(result, signs, out=result)
        return True


class _Casts:
    """Torch's casts between a thread's float32 blocks and halves.

    Halves are copied through scratch (0.07 ns an element): tensors of the callers' arrays would cost more.
    """

    def __init__(self, wide: Array) -> None:
        torch = sys.modules["torch"]
        self._bits = np.empty(BLOCK, np.int16)
        with torch.inference_mode(False):  # tensors made in inference mode can only be written in it
            self._wide = [torch.from_numpy(block) for block in wide]
            bits = torch.from_numpy(self._bits)
            self._half = {_FLOAT16: bits.view(torch.float16), BFLOAT16: bits.view(torch.bfloat16)}

    def widen(self, half: Array, side: int) -> None:
        np.copyto(self._bits[: half.size], half.view(np.int16))
        _cast(self._half[half.dtype], self._wide[side], half.size)

    def narrow(self, half: Array) -> None:
        _cast(self._wide[0], self._half[half.dtype], half.size)
        np.copyto(half.view(np.int16), self._bits[: half.size])


def _cast(source: Any, target: Any, count: int) -> None:
    if count < BLOCK:  # a slice takes 1 µs
        source, target = source[:count], target[:count]
    target.copy_(source)


def add_by_torch(left: Array, right: Array, out: Array) -> bool:
    """Do `out = left + right` if torch is there and it pays (a call takes 20 µs) → whether it was done."""
    if out.size <= BLOCK or not torch_serves():
        return False
    operands = (left, right, out)
    if not all(array.flags.c_contiguous and array.flags.aligned for array in operands):
        return False
    _add(*operands)
    return True


def _add(*operands: Array) -> None:
    torch = sys.modules["torch"]
    blocks = (_tensor(torch, array).split(BLOCK) for array in operands)
    for left, right, out in zip(*blocks, strict=True):
        torch.add(left, right, out=out)


def _tensor(torch: Any, array: Array) -> Any:
    if not array.flags.writeable:
        array = np.asarray(_Alias(array)).view(array.dtype)
    tensor = torch.from_numpy(array.view(np.int16))
    return tensor.view(torch.bfloat16 if array.dtype == BFLOAT16 else torch.float16)


class _Alias:
    """A read-only array (memory of a peer) that claims to be writable, as torch warns of others."""

    def __init__(self, array: Array) -> None:
        self.array = array  # kept alive
        self.__array_interface__ = array.view(np.int16).__array_interface__ | {
            "data": (array.ctypes.data, False)
        }


def torch_serves() -> bool:
    """Whether torch is loaded, and does as NumPy does: checked once, before it is used."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):  # being imported by another thread
        return False
    # Inside a mode (of this thread) tensors may be other things, FakeTensors without values for one.
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return modes is not None and modes() == 0 and _compare()


@cache
@np.errstate(all="ignore")
def _compare() -> bool:
    """Compare torch and NumPy on numbers of all exponents: halves, halfway between two, and next to halfway.
    2 ms at first."""
    scratch = np.zeros((2, BLOCK), np.float32)
    casts = _Casts(scratch)
    count = np.arange(4099, dtype=np.uint32)  # not a multiple of anything
    wide = scratch[0, : count.size]
    bits = (count * 40503).astype(np.uint16)  # spread over all
    for dtype, halfway in ((_FLOAT16, 1 << 12), (BFLOAT16, 1 << 15)):
        left = bits.view(dtype)
        casts.widen(left, 0)
        agree = _same(wide, left)
        wide.view(np.uint32)[:] += np.array([0, halfway - 1, halfway, halfway + 1], np.uint32)[count % 4]
        result = np.empty_like(left)
        casts.narrow(result)
        agree &= _same(result, wide.astype(dtype))
        right = (bits + (count % 2999).astype(np.uint16)).view(dtype)  # close to it, so that sums are rounded
        _add(left, right, result)
        agree &= _same(result, (left.astype(np.float32) + right.astype(np.float32)).astype(dtype))
        if not agree:
            return False
    return True


def _same(values: Array, want: Array) -> bool:
    values, want = values.astype(np.float32), want.astype(np.float32)
    equal = values.view(np.uint32) == want.view(np.uint32)
    return bool((equal | (np.isnan(values) & np.isnan(want))).all())


@cache
def _values() -> Array:
    """All float16 values by their bits, 256 KiB of float32."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@cache
def _least() -> Array:
    """The least normal float16, as the upper half of a float32. (For `maximum` a number is slower.)"""
    return np.full(BLOCK, (127 - 14) << 7, np.uint16)


halves = Halves()
