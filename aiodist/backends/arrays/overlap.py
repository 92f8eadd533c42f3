"""The check whether two tensors share memory: an operation must not read what it writes elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_EFFORT = 10_000  # candidate solutions to try before giving up: well under a millisecond


def overlaps(a: Array, b: Array) -> bool:
    """Whether two arrays share a byte.

    Bounds decide first. Where only these overlap (two columns of one matrix) the exact question is
    tried with bounded effort; where that is too hard the answer is True.
    """
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=_EFFORT))  # type: ignore[call-overload,arg-type,unused-ignore]
    except np.exceptions.TooHardError:
        return True
