"""Device tensors by the host engine, through pinned memory: where ranks share a GPU, or NCCL is not here.

`backend` is the carrier of one group, `copier` the threads and streams that copy for all groups of a world.
"""

from __future__ import annotations

from aiodist.backends.staged.backend import StagedBackend

__all__ = ["StagedBackend"]
