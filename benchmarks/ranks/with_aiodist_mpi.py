"""aiodist's backend 'mpi' in one rank: mpi4py's own calls, behind `await`."""

from __future__ import annotations

from mpi4py import MPI

import aiodist as dist
from benchmarks.ranks.base import LOOPBACK
from benchmarks.ranks.with_aiodist import AiodistPeer


class AiodistMpiPeer(AiodistPeer):
    """See `Peer`. The launcher decides who is who."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        self.pg = await dist.init_process_group("mpi", timeout=60)
