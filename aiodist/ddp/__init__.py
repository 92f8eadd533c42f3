"""Data-parallel training, also with rare communication."""

from __future__ import annotations

from aiodist.ddp.buckets import Bucket
from aiodist.ddp.diloco import DiLoCo, LocalSGD
from aiodist.ddp.sync import GradientSync

__all__ = ["Bucket", "DiLoCo", "GradientSync", "LocalSGD"]
