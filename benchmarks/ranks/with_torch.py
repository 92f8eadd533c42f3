"""torch's groups over aiodist and over gloo in one rank, beside a group of aiodist's own."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as c10d

from benchmarks.harness.crew import free_port
from benchmarks.ranks.base import LOOPBACK
from benchmarks.ranks.with_aiodist import AiodistPeer


class TorchPeer(AiodistPeer):
    """See `Peer`.

    Attributes:
        gloo: torch's group over gloo; its default group is over aiodist.
    """

    gloo: Any

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "torch": version("torch")}

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        torch.set_num_threads(1)
        method = f"tcp://{host}:{port}"
        c10d.init_process_group("aiodist", init_method=method, rank=self.rank, world_size=self.size)
        self.gloo = c10d.new_group(backend="gloo")
        found = [None] * self.size
        c10d.all_gather_object(found, free_port() if self.rank == 0 else None)
        await super().connect(found[0] or 0, host)

    async def disconnect(self) -> None:
        await super().disconnect()
        c10d.destroy_process_group()
