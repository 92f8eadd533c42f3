"""The data of one measured operation: how many elements, which values go in, which must come out.

Sizes are counted as nccl-tests count them: the bytes of the larger side of one rank. Values differ
between ranks and between adjacent elements. They are small integers, exact in every dtype (bfloat16 up to 8
ranks).

It needs nothing else of aiodist, so that `benchmarks/` can take it into ranks that measure an older aiodist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
)
SWEPT = (*COLLECTIVES, "p2p", "barrier")
FIVE = ("all_reduce", "barrier", "broadcast", "all_gather", "reduce_scatter")
IN_FLIGHT = 64
_PERIOD = 7
_LINE = 64
_BLOCK = _PERIOD << 16  # elements compared at once


class WrongResultError(AssertionError):
    """The error that a measured operation gave wrong values."""


@dataclass(frozen=True)
class Case:
    """One operation to measure.

    Args:
        what: a collective, its root rank 0 where it has one; 'p2p' (there and back between ranks 0 and 1);
            'barrier'; 'five' (those of `FIVE` in a row, each of that size); or 'inflight' (64 all_reduces
            at once).
        nbytes: its size; 0 for a barrier.
        dtype: by name.
        shared: whether its tensors come from `pg.empty`.
    """

    what: str
    nbytes: int = 0
    dtype: str = "float32"
    shared: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype, bfloat16 included."""
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    def lengths(self, size: int, rank: int = 0) -> tuple[int, int]:
        """Elements of a rank's tensor, and of its separate output (0: in place, or nothing).

        Rank 0 is the root, whose arrays are the largest.
        """
        if self.what == "barrier":
            return 0, 0
        count = max(1, self.nbytes // self.numpy_dtype.itemsize)
        part = max(1, count // size)
        match self.what:
            case "all_gather":
                return part, part * size
            case "reduce_scatter":
                return part * size, part
            case "all_to_all":
                return part * size, part * size
            case "gather":
                return part, 0 if rank else part * size
            case "scatter":
                return 0 if rank else part * size, part
            case "five":
                places = five(self, size).values()
                return max(tensor.stop for tensor, _ in places), max(out.stop for _, out in places)
            case "p2p":
                return count, count
            case _:
                return count, 0


def five(case: Case, size: int) -> dict[str, tuple[slice, slice]]:
    """Where each collective of 'five' has its input in the tensor, and its output in the output; each begins
    on a cache line."""
    found, at = {}, [0, 0]
    line = max(1, _LINE // case.numpy_dtype.itemsize)
    for what in FIVE:
        lengths = replace(case, what=what).lengths(size)
        tensor, out = (slice(begin, begin + length) for begin, length in zip(at, lengths, strict=True))
        found[what] = tensor, out
        at = [-(-place.stop // line) * line for place in (tensor, out)]
    return found


def fill(array: Array, rank: int) -> None:
    """Give a flat array the values of a rank."""
    for begin, end, values in _ramp(array, 0, 1, _offset(rank)):
        array[begin:end] = values


def check(case: Case, rank: int, size: int, tensor: Array, out: Array) -> None:
    """Compare the result of one operation on filled tensors with what it must be.

    Args:
        tensor: the flat input, overwritten where the operation works in place.
        out: the flat output, empty where there is none.

    Raises:
        WrongResultError: it is something else; says where.
    """
    if case.what == "five":
        for what, (given, got) in five(case, size).items():
            _check(replace(case, what=what), rank, size, tensor[given], out[got], given.start)
    else:
        _check(case, rank, size, tensor, out, 0)


def _check(case: Case, rank: int, size: int, tensor: Array, out: Array, first: int) -> None:
    """Check one operation, whose input was filled from the value with this number on."""
    total = sum(map(_offset, range(size)))
    part = len(out) // size
    match case.what:
        case "all_reduce":
            _same(case, tensor, first, size, total)
        case "reduce" if rank == 0:
            _same(case, tensor, first, size, total)
        case "broadcast":
            _same(case, tensor, first, 1, _offset(0))
        case "reduce_scatter":
            _same(case, out, first + rank * len(out), size, total)
        case "scatter":
            _same(case, out, first + rank * len(out), 1, _offset(0))
        case "all_gather" | "gather":
            for source in range(size) if len(out) else ():
                _same(case, out[source * part : (source + 1) * part], first, 1, _offset(source))
        case "all_to_all":
            for source in range(size):
                mine = out[source * part : (source + 1) * part]
                _same(case, mine, rank * part, 1, _offset(source))
        case "p2p" if rank < 2:
            _same(case, out, 0, 1, _offset(1 - rank))
        case _:
            pass


def _offset(rank: int) -> int:
    return _PERIOD * rank


def _ramp(array: Array, first: int, scale: int, offset: int) -> Iterator[tuple[int, int, Array]]:
    """(begin, end, values): scale · ((first + i) mod 7) + offset for each element, in pieces."""
    length = len(array)
    block = (np.arange(first, first + min(length, _BLOCK)) % _PERIOD * scale + offset).astype(array.dtype)
    for begin in range(0, length, _BLOCK):
        end = min(begin + _BLOCK, length)
        yield begin, end, block[: end - begin]


def _same(case: Case, array: Array, first: int, scale: int, offset: int) -> None:
    for begin, end, values in _ramp(array, first, scale, offset):
        if not np.array_equal(array[begin:end], values):
            where = begin + int(np.flatnonzero(array[begin:end] != values)[0])
            raise WrongResultError(
                f"{case.what} of {case.nbytes} bytes, {case.dtype}: element {where} is {array[where]}, "
                f"not {values[where - begin]}"
            )
