"""aiodist for programs that say "gloo": `aiodist run --torch train.py`.

torch makes a gloo group by calling a class of its module; ours takes its place there. `get_backend()` still
says "gloo", since it was asked for.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from torch.distributed import distributed_c10d

from aiodist.integrations.torch.group import AiodistProcessGroup
from aiodist.integrations.torch.meeting import meet_over_store

_PATIENCE = timedelta(minutes=30)  # torch's, where it says none


class GlooStandIn(AiodistProcessGroup):
    """A group of ours, made as torch makes one of gloo's.

    Args:
        store: of this group alone.
        rank, size: in it.
        timeout: for meeting, and of operations.
    """

    asked_as = "gloo"

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta = _PATIENCE) -> None:
        ours = meet_over_store(store, rank, size, timeout.total_seconds())
        super().__init__(ours, "", list(range(size)))
        self.options = SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Ours counts by itself."""


def take_its_place() -> None:
    """Have torch make groups of ours where a program asks for gloo."""
    distributed_c10d.ProcessGroupGloo = GlooStandIn
