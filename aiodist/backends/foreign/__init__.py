"""Libraries of communication behind the same `await`: what they leave to their users is here (law 13).

engine      the interface of a library, which others may implement; `task`: one operation for it
backend     the carrier around an engine: compares the calls of all members, keeps their order
group       one group's engine, with the copies before and after an operation
messages    messages, matched by the host engine and moved by the library
moves       collectives that the library does not have, as sends and receives
"""

from __future__ import annotations

from aiodist.backends.foreign.backend import ForeignBackend
from aiodist.backends.foreign.engine import Done, Engine, Setup
from aiodist.backends.foreign.moves import Move
from aiodist.backends.foreign.task import Task

__all__ = ["Done", "Engine", "ForeignBackend", "Move", "Setup", "Task"]
