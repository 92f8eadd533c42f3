"""Collective algorithms as data: schedules, and their selection. The tests have a prover that checks them."""

from __future__ import annotations

from aiodist.schedules.early import posted_in
from aiodist.schedules.select import UNKNOWN, select
from aiodist.schedules.steps import Recv, RecvReduce, Schedule, Send, Step, chunk_bounds, spans

__all__ = [
    "UNKNOWN",
    "Recv",
    "RecvReduce",
    "Schedule",
    "Send",
    "Step",
    "chunk_bounds",
    "posted_in",
    "select",
    "spans",
]
