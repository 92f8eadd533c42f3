"""Tensors of every family as NumPy arrays on the same memory, and back.

view        NumPy, torch, DLPack or a buffer as an array: dtype, shape, strides
family      which library a tensor is of; new tensors of that library
device      tensors on devices, as arrays of which only the geometry is used
overlap     whether two arrays share memory; `renewal`: where a result replaces its tensor
kernels/    reductions, copies, and what they cost
"""

from __future__ import annotations

from aiodist.backends.arrays.family import check_shape, like, wrap
from aiodist.backends.arrays.overlap import overlaps
from aiodist.backends.arrays.renewal import renewal
from aiodist.backends.arrays.view import view

__all__ = ["check_shape", "like", "overlaps", "renewal", "view", "wrap"]
