"""Training: gradients that are averaged while they are computed, sharded optimisers, checkpoints.

    sync, buckets   `GradientSync`: buckets of gradients, averaged while the backward pass goes on
    diloco          `DiLoCo` and `LocalSGD`: rare communication; `rhythm`, `outer` are its pure parts
    sharded/        `ShardedOptimizer`: an optimiser whose state is spread over the ranks
    checkpoint/     `Checkpoints`: written by all ranks, read by any number
    arguments       checks of what users pass; `awaited`: calls that a loop might forget to await
    holders         whose values the members of a new epoch get

It uses groups as users do, through their public calls. Contract: docs/train-arrays.md, docs/elastic.md.
"""

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
