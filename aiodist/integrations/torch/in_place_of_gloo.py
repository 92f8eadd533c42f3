"""aiodist for programs that say "gloo": `aiodist run --torch train.py`.

torch makes a gloo group by calling a class of its module; ours takes its place there. `get_backend()` still
says "gloo", since it was asked for.
"""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from aiodist.integrations.torch.group import AiodistProcessGroup
from aiodist.integrations.torch.meeting import meet_over_store

_LOGGED = "_get_ddp_logging_data"
_READ_BY_GLOO = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
_THREADS = 2  # of a group of ours: the loop's, and the one for large operations
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
    known = getattr(DistributedDataParallel, _LOGGED)

    def known_as_gloo(self: Any) -> Any:
        # C++ would ask a group that calls itself gloo for gloo's innards, so ours has another name there.
        facts = known(self)
        if isinstance(self.process_group, GlooStandIn):
            facts["backend_name"] = "gloo"
            facts |= {name.lower(): os.environ.get(name, "N/A") for name in _READ_BY_GLOO}
            facts["gloo_num_threads"] = _THREADS
        return facts

    setattr(DistributedDataParallel, _LOGGED, known_as_gloo)
