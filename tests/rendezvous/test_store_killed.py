"""Row 14 of the faults: the store of a running job is killed and started again; its collectives go on."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from aiodist.rendezvous import TcpStore
from tests.levels import COSTLY, MORE
from tests.rendezvous.durability_load import HOST, JOB, ROOT, SECRET, Server

RANK = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group(timeout=60) as pg:
        total = np.ones(1000)
        for line in sys.stdin:
            for _ in range(int(line)):
                await pg.all_reduce(total)
                total /= pg.size
            print("done", total.min(), total.max(), flush=True)
        # A group that is made now meets in the store that was started again.
        again = await pg.new_group([0, 1])
        print("again", (await again.all_reduce(np.ones(1)))[0], flush=True)
dist.run(main())
"""


async def start(rank: int, port: int) -> asyncio.subprocess.Process:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "AIODIST_STORE": f"{HOST}:{port}",
        "AIODIST_JOB": JOB,
        "AIODIST_SECRET": SECRET,
    }
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", RANK, stdin=pipe, stdout=pipe, env=environ
    )


@pytest.mark.slow(COSTLY)
async def test_collectives_go_on_while_the_store_is_killed_and_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    await server.start()
    ranks = [await start(rank, server.port) for rank in range(2)]

    async def told(word: str) -> list[str]:
        lines = []
        for rank in ranks:
            assert rank.stdout is not None
            lines.append((await rank.stdout.readline()).decode().strip())
            assert lines[-1].startswith(word)
        return lines

    async def work(count: int) -> None:
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{count}\n".encode())
        assert await told("done") == ["done 1.0 1.0"] * 2

    try:
        await work(10)
        await server.kill()
        await work(500)  # there is no store
        await server.start()
        await work(10)
        await server.kill()
        await server.start()
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        assert await told("again") == ["again 2.0"] * 2
        assert [await rank.wait() for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            if rank.returncode is None:
                rank.kill()
            await rank.communicate()
        await server.kill()


@pytest.mark.slow(MORE)
async def test_a_job_that_was_killed_is_started_again_on_the_same_store(tmp_path: Path) -> None:
    """What its ranks had claimed goes with them."""
    server = Server(tmp_path / "data")
    await server.start()
    watcher = await TcpStore.connect(HOST, server.port, JOB, SECRET.encode(), 30)
    ranks: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(2):
            claims = watcher.watch("aiodist/world/aiodist/rank/")
            ranks = [await start(rank, server.port) for rank in range(2)]
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write(b"10\n")
            for rank in ranks:
                assert rank.stdout is not None
                assert (await rank.stdout.readline()).startswith(b"done")
            for rank in ranks:
                rank.kill()
            gone = 0
            while gone < 2:
                gone += (await anext(claims)).value is None
            for rank in ranks:
                await rank.communicate()
            await claims.aclose()
    finally:
        for rank in ranks:
            if rank.returncode is None:
                rank.kill()
                await rank.communicate()
        await watcher.aclose()
        await server.kill()
