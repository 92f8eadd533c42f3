"""What is computed on arrays: reductions, copies, and what they cost."""

from __future__ import annotations

from aiodist.kernels.copy import copy_into
from aiodist.kernels.cost import cost_ns
from aiodist.kernels.reduce import finish, reduce_into
from aiodist.kernels.scale import scale

__all__ = ["copy_into", "cost_ns", "finish", "reduce_into", "scale"]
