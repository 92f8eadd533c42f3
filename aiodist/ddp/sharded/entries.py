"""The state that an optimiser keeps for a piece of an array, as plain descriptions and as bytes.

An optimiser's state of a piece is a dict. Its entries are of three kinds: `elements`, an array shaped like
the piece, of which a part belongs to each element; `whole`, any other array, which belongs to the whole array
and so exists only where arrays are not divided; and scalars, the same for all pieces of an array. All pieces
of an array have the same entries when they are cut anew, or saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view, wrap
from aiodist.base.errors import UsageError, shown
from aiodist.base.types import dtype_named

Array = npt.NDArray[Any]

ELEMENTS, WHOLE, SCALAR = "elements", "whole", "scalar"

ALIKE = (
    "Make each entry when a piece is updated for the first time, also where its gradient is zero, and keep "
    "numbers there that are alike for all pieces of an array"
)
"""What to do where pieces of an array differ in their entries."""

Entry = list[Any]
"""[name, kind, dtype, shape or form, value]: plain values, which travel and are written as they are."""


def described(state: Mapping[str, Any], shape: tuple[int, ...], whole: bool) -> list[Entry]:
    """The entries of a piece's state.

    Args:
        state: of the optimiser.
        shape: of the piece.
        whole: the piece is a whole array.

    Raises:
        UsageError: an entry cannot be divided among ranks, or is no array or number.
    """
    return [_entry(name, value, shape, whole) for name, value in state.items()]


def _entry(name: str, value: Any, shape: tuple[int, ...], whole: bool) -> Entry:
    if value is None or isinstance(value, bool | int | float):  # NumPy's float64 is a float
        return [name, SCALAR, "", "plain", value.item() if isinstance(value, np.generic) else value]
    if not hasattr(value, "shape"):
        raise UsageError(f"the optimizer's state {name!r} is {shown(value)}: keep numbers and arrays there")
    array = view(value, writable=False, what=f"state {name!r}")
    if array.ndim == 0:
        form = "array" if isinstance(value, np.ndarray | np.generic) else "tensor"
        return [name, SCALAR, array.dtype.name, form, array.item()]
    if array.shape == shape:
        return [name, ELEMENTS, array.dtype.name, list(shape), None]
    if not whole:
        raise UsageError(
            f"the optimizer's state {name!r} has the shape {list(array.shape)}, its piece {list(shape)}",
            hint="Pass whole=True: this optimizer needs whole arrays",
        )
    return [name, WHOLE, array.dtype.name, list(array.shape), None]


def scalar_of(entry: Entry, example: Any) -> Any:
    """The value of a scalar: a number, an array of no dimension, or a tensor of the example's family."""
    _, _, dtype, form, value = entry
    if form == "plain":
        return value
    array = np.array(value, dtype_named(dtype))
    return array if form == "array" else wrap(example, array)


def length_of(entry: Entry, count: int) -> int:
    """Elements of an entry, of which a move of `count` elements takes so many."""
    return int(np.prod(entry[3], dtype=np.int64)) if entry[1] == WHOLE else count


def alike(pieces: Iterable[tuple[int, list[Entry]]]) -> dict[int, list[Entry]]:
    """The entries of each array, which all its pieces have: pieces are cut anew, and an element of a new
    piece must not lack what the one beside it has.

    Args:
        pieces: for each the index of its array, and its entries.

    Raises:
        UsageError: pieces of an array have other entries, or other numbers there.
    """
    found: dict[int, list[Entry]] = {}
    for index, listed in pieces:
        theirs, mine = _compared(found.setdefault(index, listed)), _compared(listed)
        for name in {**theirs, **mine}:
            if theirs.get(name) != mine.get(name):
                raise UsageError(
                    f"the optimizer's state {name!r} is not the same for all pieces of trained array {index}",
                    hint=ALIKE,
                )
    return found


def _compared(entries: Sequence[Entry]) -> dict[str, str]:
    """The part of each entry that all pieces share, by name, as text: NaN is alike, and 1 is not True."""
    return {
        name: repr((kind, dtype, None if kind == ELEMENTS else form, value))
        for name, kind, dtype, form, value in entries
    }
