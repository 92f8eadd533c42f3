"""Libraries of communication behind the same `await`: what they leave to their users is here (law 13)."""

from __future__ import annotations

from aiodist.backends.foreign.backend import ForeignBackend
from aiodist.backends.foreign.engine import Done, Engine, Setup
from aiodist.backends.foreign.moves import Move
from aiodist.backends.foreign.task import Task

__all__ = ["Done", "Engine", "ForeignBackend", "Move", "Setup", "Task"]
