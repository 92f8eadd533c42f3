"""Device tensors over NCCL, by `cupy.cuda.nccl`: only this package imports it.

engine          NCCL behind the seam of `foreign`; `launch`: one operation as calls of NCCL
lane            one communicator, its stream, and the thread that waits there; `pair`: for messages
device          the launch threads that the groups of one device share
communicators   how they are made and ended, in CuPy 13 and 14
sharing         whether the processes of a job can use NCCL together; `tables`: its constants; both pure
"""

from __future__ import annotations

from aiodist.backends.nccl.engine import NcclEngine

__all__ = ["NcclEngine"]
