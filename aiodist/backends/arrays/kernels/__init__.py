"""Computation on arrays of the host: which reduction, on which dtype, by which code.

reduce      reductions, by op and dtype; `scale`: an array and a number (AVG, PREMUL_SUM)
halves      float16 and bfloat16, in float32; `blockwise`: quantised blocks
copy        copies, strided or not
cost        how long a reduction takes; `unwarned`: ufuncs without warnings
"""

from __future__ import annotations

from aiodist.backends.arrays.kernels.copy import copy_into
from aiodist.backends.arrays.kernels.cost import INLINE_NS, copy_cost_ns, cost_ns
from aiodist.backends.arrays.kernels.reduce import combine, combiner, finish, reduce_in_order, reduce_into
from aiodist.backends.arrays.kernels.scale import scale
from aiodist.backends.arrays.kernels.unwarned import unwarned

__all__ = [
    "INLINE_NS",
    "combine",
    "combiner",
    "copy_cost_ns",
    "copy_into",
    "cost_ns",
    "finish",
    "reduce_in_order",
    "reduce_into",
    "scale",
    "unwarned",
]
