"""Checkpoints that several ranks write together, and any number of ranks read.

checkpoints   `Checkpoints`: saves and loads, by all ranks of a group
tree          what is saved, as plain nodes; pure
parts         which part of an array is a rank's, and reads it from the files of several
index         index.json: its fields, written and checked; pure
files         files of arrays in the format safetensors
folder        which checkpoints of a folder are whole, and which are removed
"""

from __future__ import annotations

from aiodist.ddp.checkpoint.checkpoints import Checkpoint, Checkpoints, Saving
from aiodist.ddp.checkpoint.tree import PerRank

__all__ = ["Checkpoint", "Checkpoints", "PerRank", "Saving"]
