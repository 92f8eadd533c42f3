"""Tensors of every family as NumPy arrays on the same memory, and back."""

from __future__ import annotations

from aiodist.tensors.family import check_shape, like, wrap
from aiodist.tensors.overlap import overlaps
from aiodist.tensors.renewal import renewal
from aiodist.tensors.view import view

__all__ = ["check_shape", "like", "overlaps", "renewal", "view", "wrap"]
