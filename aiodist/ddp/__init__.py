"""Data-parallel training, also with rare communication."""

from __future__ import annotations

from aiodist.ddp.buckets import Bucket
from aiodist.ddp.checkpoint import Checkpoint, Checkpoints, PerRank, Saving
from aiodist.ddp.diloco import DiLoCo, LocalSGD
from aiodist.ddp.sharded import ShardedOptimizer
from aiodist.ddp.sync import GradientSync

__all__ = [
    "Bucket",
    "Checkpoint",
    "Checkpoints",
    "DiLoCo",
    "GradientSync",
    "LocalSGD",
    "PerRank",
    "Saving",
    "ShardedOptimizer",
]
