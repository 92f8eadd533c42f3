"""Lightning: `Trainer(plugins=[AiodistEnvironment()], strategy="ddp", devices=4)` under `aiodist run`.

Lightning recognises `aiodist run` also without it, by the variables of torchrun; this says so by name, and in
the trainer's own terms. A script that calls `dist.init_process_group()` inside of Lightning needs neither: it
finds torch's group.
"""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

from aiodist.base.environment import Placement, placement


class AiodistEnvironment(ClusterEnvironment):  # type: ignore[misc]
    """The cluster environment of a process that `aiodist run` started."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Placement = placement(os.environ)

    @property
    def creates_processes_externally(self) -> bool:
        """`aiodist run` has started all processes."""
        return True

    @property
    def main_address(self) -> str:
        """Host of torch's own store."""
        return self._place.master_addr or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Port of it; free, for torch."""
        return self._place.master_port or 29500

    @staticmethod
    def detect() -> bool:
        """Whether `aiodist run` started this process."""
        return bool(os.environ.get("AIODIST_STORE") and os.environ.get("RANK"))

    def world_size(self) -> int:
        """Number of ranks."""
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """Nothing: the launcher has decided it."""

    def global_rank(self) -> int:
        """This process's rank."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing: the launcher has decided it."""

    def local_rank(self) -> int:
        """Rank on the node."""
        return self._place.local_rank or 0

    def node_rank(self) -> int:
        """Number of the node."""
        return self._place.node_rank or 0
