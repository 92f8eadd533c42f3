"""Checkpoints that several ranks write together, and any number of ranks read."""

from __future__ import annotations

from aiodist.ddp.checkpoint.checkpoints import Checkpoint, Checkpoints, Saving
from aiodist.ddp.checkpoint.tree import PerRank

__all__ = ["Checkpoint", "Checkpoints", "PerRank", "Saving"]
