"""Members that die and join, where the arbiter is a real etcd."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from typing import Any

import numpy as np
import pytest

import aiodist as dist


async def life() -> None:
    """Sum until there were three epochs; rank 0 of the first kills itself, and a newcomer comes."""
    async with await dist.join(timeout=120) as first:
        pg, step = first, 0
        while pg.epoch < 2 or pg.size < 3:
            if pg.epoch == 0 and pg.rank == 0 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            numbers = np.array([10**pg.rank])
            try:
                await pg.all_reduce(numbers)
                assert numbers[0] == sum(10**rank for rank in range(pg.size))
                well = not (pg.rank == 0 and await pg.newcomers_here())
            except dist.PeerLost:
                well = False
            if await pg.agree(well):
                step += 1
            else:
                pg = await pg.rebuild(min_size=2)
                print(f"epoch {pg.epoch} of {pg.size}", flush=True)
        assert await pg.agree(True)


@pytest.mark.slow("more of the same")
async def test_a_death_and_a_newcomer(etcd: Any) -> None:
    common = os.environ | {
        "AIODIST_STORE": etcd.url,
        "AIODIST_JOB": secrets.token_hex(4),
        "AIODIST_SECRET": "etcd's",
        "WORLD_SIZE": "3",
    }

    async def start(**variables: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, __file__),
            env=common | variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    ranks = [await start(RANK=str(rank)) for rank in range(3)]
    try:
        assert await ranks[0].wait() == -signal.SIGKILL
        assert ranks[1].stdout is not None
        assert await ranks[1].stdout.readline() == b"epoch 1 of 2\n"
        ranks.append(await start(AIODIST_NEWCOMER="1"))
        outputs = [await rank.communicate() for rank in ranks]
        assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0, 0, 0], outputs
        assert outputs[1][0] == b"epoch 2 of 3\n"
    finally:
        for rank in ranks:
            if rank.returncode is None:
                rank.kill()
                await rank.wait()


if __name__ == "__main__":
    dist.run(life())
