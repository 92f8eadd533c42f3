"""A store that outlives a run of its job: the next run begins anew, and its epochs are its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import aiodist as dist
from aiodist.rendezvous import StoreServer, TcpStore


async def life() -> None:
    """Three begin, rank 2 dies, two form the next epoch."""
    async with await dist.join(timeout=20) as pg:
        if pg.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.PeerLost):
            while True:
                await pg.all_reduce(np.array([10**pg.rank]))
        pg = await pg.rebuild(min_size=2)
        assert (pg.epoch, pg.size) == (1, 2)
        assert await pg.agree(True)


@pytest.mark.timeout(60)
async def test_two_runs_on_one_store() -> None:
    async with await StoreServer.start("127.0.0.1", 0, "again", b"known") as server:
        common = os.environ | {
            "AIODIST_STORE": f"127.0.0.1:{server.port}",
            "AIODIST_JOB": "again",
            "AIODIST_SECRET": "known",
            "WORLD_SIZE": "3",
        }
        for _ in range(2):
            ranks = [
                await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__), env=common | {"RANK": str(rank)}, stderr=subprocess.PIPE
                )
                for rank in range(3)
            ]
            said = [(await rank.communicate())[1].decode() for rank in ranks]
            assert [rank.returncode for rank in ranks] == [0, 0, -signal.SIGKILL], said
            await rank_is_free(server)


async def rank_is_free(server: StoreServer) -> None:
    """What the killed one had claimed goes two seconds after its connection."""
    async with await TcpStore.connect("127.0.0.1", server.port, "again", b"known", 10) as store:
        claims = "aiodist/world/aiodist/rank/2"
        async with store.watch(claims) as watch:
            while claims in await store.list_keys(claims):
                await anext(watch)


if __name__ == "__main__":
    dist.run(life())
