"""Device tensors over NCCL, by `cupy.cuda.nccl`: only this package imports it."""

from __future__ import annotations

from aiodist.backends.nccl.engine import NcclEngine

__all__ = ["NcclEngine"]
