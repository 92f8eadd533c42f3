"""Data-parallel training of a torch module in an async loop: `wrapper`, on the gradients of its `buckets`."""

from __future__ import annotations

from aiodist.integrations.torch.data_parallel.buckets import GradBucket
from aiodist.integrations.torch.data_parallel.wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel", "GradBucket"]
