"""The kernels of `aiodist.backends.cuda.kernels` by NumPy, on memory of the host: what each does, by name.

It sees the arguments as a device would: addresses, numbers, a layout. The code itself is held against it in
test_kernels.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES: dict[str, Any] = {
    **{f"{kind}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    "u128": "V16",
    "f16": "f2",
    "bf16": ml_dtypes.bfloat16,
    "f32": "f4",
    "f64": "f8",
    "c64": "c8",
    "c128": "c16",
}
_FOLDS: dict[str, Any] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "product": np.multiply,
}


def run(name: str, arguments: tuple[Any, ...]) -> None:
    """Carry out one kernel.

    Args:
        name: of the kernel: 'move_u32_u16'.
        arguments: as they are given to CuPy.
    """
    what, *types = name.split("_")
    if what == "move":
        to, source, layout = arguments
        _at(to, types[0], layout, "to")[...] = _at(source, types[1], layout, "source")
        return
    count = arguments[1] if what == "scale" else arguments[2]
    left = _plain(arguments[0], types[0], count)
    if what == "scale":
        factor = arguments[2]
        wide = np.float32 if types[0] in ("f16", "bf16") else left.dtype
        left[...] = (left.astype(wide) * np.asarray(factor, wide)).astype(left.dtype)
    else:
        _FOLDS[what](left, _plain(arguments[1], types[0], count), out=left)


def _plain(address: int, kind: str, count: int) -> Array:
    dtype = np.dtype(_TYPES[kind])
    there: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(there, dtype)


def _at(address: int, kind: str, layout: Any, side: str) -> Array:
    one = layout[0]
    axes = int(one["axes"])
    shape, strides = one["shape"][:axes].tolist(), one[side][:axes].tolist()
    assert int(one["count"]) == np.prod(shape, dtype=np.int64)
    return as_strided(_plain(address, kind, 1), shape or (1,), strides or (0,))
