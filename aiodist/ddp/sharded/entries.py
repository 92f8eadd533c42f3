"""The state that an optimiser keeps for a piece of an array, as plain descriptions and as bytes.

An optimiser's state of a piece is a dict. Its entries are of three kinds: `elements`, an array shaped like
the piece, of which a part belongs to each element; `whole`, any other array, which belongs to the whole array
and so exists only where arrays are not divided; and scalars, the same for all pieces of an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view, wrap
from aiodist.base.errors import UsageError, shown
from aiodist.base.types import dtype_named

Array = npt.NDArray[Any]

ELEMENTS, WHOLE, SCALAR = "elements", "whole", "scalar"

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
    if value is None or isinstance(value, bool | int | float):
        return [name, SCALAR, "", "plain", value]
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


def alike(described_by: Sequence[Mapping[str, list[Entry]]]) -> dict[int, list[Entry]]:
    """The entries of each array, as the first that has some of it tells them."""
    found: dict[int, list[Entry]] = {}
    for entries in described_by:
        for index, listed in entries.items():
            found.setdefault(int(index), listed)
    return found
