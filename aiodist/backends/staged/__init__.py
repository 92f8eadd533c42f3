"""Device tensors by the host engine, through pinned memory: where ranks share a GPU, or NCCL is not here."""

from __future__ import annotations

from aiodist.backends.staged.backend import StagedBackend

__all__ = ["StagedBackend"]
