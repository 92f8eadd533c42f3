"""Rules of optimisers over arrays, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np


def adam(values: Any, gradient: Any, state: dict[str, Any]) -> None:
    """A rule with arrays and a number in its state."""
    state["count"] = state.get("count", 0) + 1
    mean = state.setdefault("mean", np.zeros_like(values))
    square = state.setdefault("square", np.zeros_like(values))
    mean += (gradient - mean) * values.dtype.type(0.25)
    square += (gradient * gradient - square) * values.dtype.type(0.125)
    values -= (mean / (np.sqrt(square) + 1)).astype(values.dtype) * values.dtype.type(0.5 / state["count"])
