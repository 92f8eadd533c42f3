"""Values that cannot be written: numbers, NumPy's scalars, read-only and immutable arrays.

An operation that would write to one gives a new value instead, of the same kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays.device import torch_of
from aiodist.backends.arrays.view import view

Array = npt.NDArray[Any]


def renewal(obj: Any) -> Callable[[Array], Any] | None:
    """The maker of a new value of an object's kind from an array; None where the object can be written, or is
    nothing that `view` takes."""
    if isinstance(obj, np.ndarray):
        return None if obj.flags.writeable else _as_it_is
    if isinstance(obj, np.generic):
        return _scalar
    if isinstance(obj, bool | int | float | complex):
        return _number
    try:
        return _foreign(obj)
    except Exception:  # whatever foreign objects raise when they are asked: `view` says what is wrong
        return None


def _foreign(obj: Any) -> Callable[[Array], Any] | None:
    if torch_of(obj) or not hasattr(obj, "__dlpack__"):
        return None
    jax: Any = sys.modules.get("jax")  # a program that holds such an array has imported it
    if jax is not None and isinstance(obj, getattr(jax, "Array", ())):
        return _of_jax(jax, obj) if not isinstance(obj, jax.core.Tracer) else None
    if int(obj.__dlpack_device__()[0]) != 1:
        return None
    return None if view(obj, writable=False).flags.writeable else _as_it_is


def _as_it_is(array: Array) -> Array:
    return array


def _scalar(array: Array) -> Any:
    """A NumPy scalar of an array of one element; an array of several as it is."""
    return array[()] if array.ndim == 0 else array


def _number(array: Array) -> Any:
    """A number of Python, or a list of them."""
    return array.tolist()


def _of_jax(jax: Any, like: Any) -> Callable[[Array], Any]:
    """A JAX array on the device of another."""

    def put(array: Array) -> Any:
        return jax.device_put(array, like.sharding if array.shape == like.shape else None)

    return put
