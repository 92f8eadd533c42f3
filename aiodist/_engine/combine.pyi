"""Reductions of two arrays into a third, and halves times a number, by compiled loops.

The interpreter is released while a long loop runs. The caller owns the arrays, and nobody may write to the
inputs until the call returns.
"""

from collections.abc import Callable
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@final
class Combiner:
    """A reduction of arrays of one dtype by one operation: `combiner(left, right, out)`.

    Args:
        dtype: of the elements, of this machine's byte order.
        code: its number (`base.types.DTYPE_CODES`).
        op: the operation's (`ReduceOp`).
        otherwise: is called with arrays that are strided or not aligned, and computes the same.

    Raises:
        ValueError: the operation has no meaning for such elements.
    """

    def __new__(
        cls, dtype: np.dtype[Any], code: int, op: int, otherwise: Callable[[Any, Any, Any], object]
    ) -> Self: ...
    def __call__(self, left: npt.NDArray[Any], right: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Compute `out = left ∘ right`, element by element.

        Args:
            left, right: of the same size, only read.
            out: a third such array, or one of them; must not partly overlap either.

        Raises:
            ValueError: sizes or dtypes differ; nothing has happened.
        """

def scale_halves(array: npt.NDArray[Any], code: int, number: float, divide: bool) -> None:
    """Multiply an array of halves by a number, or divide it, in float32, rounded once.

    Args:
        array: contiguous and aligned; written in place.
        code: the number of its dtype.
        number: rounded to float32.
        divide: divide.

    Raises:
        ValueError: the dtype is no half, or the array is strided; nothing has happened.
    """
