"""A store that outlives a run of its job: the next run begins anew, and its epochs are its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import numpy as np
import pytest

import aiodist as dist
from aiodist.rendezvous import StoreServer, TcpStore


async def begin() -> None:
    """Three begin, and compute until somebody ends them."""
    async with await dist.join(timeout=90) as pg:
        print(pg.rank, pg.size, pg.epoch, flush=True)
        while True:
            await pg.all_reduce(np.array([10**pg.rank]))


async def stay() -> None:
    """Two begin, and compute until they are told that they have no say any more."""
    async with await dist.join(timeout=90) as pg:
        print(pg.rank, pg.size, pg.epoch, flush=True)
        with pytest.raises((dist.Evicted, dist.PeerLost)):
            while True:
                await pg.all_reduce(np.array([10**pg.rank]))
        try:
            await pg.rebuild()
        except dist.Evicted as error:
            print(type(error).__name__, error, flush=True)


async def come() -> None:
    """One that has no rank comes."""
    try:
        await dist.join(timeout=90)
    except dist.RendezvousError as error:
        print(type(error).__name__, error, flush=True)


async def life() -> None:
    """Three begin, rank 2 dies, two form the next epoch."""
    async with await dist.join(timeout=90) as pg:
        if pg.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.PeerLost):
            while True:
                await pg.all_reduce(np.array([10**pg.rank]))
        pg = await pg.rebuild(min_size=2)
        assert (pg.epoch, pg.size) == (1, 2)
        assert await pg.agree(True)


@pytest.mark.slow("two runs of a job, one after the other")
@pytest.mark.timeout(180)
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
                    *(sys.executable, __file__, "life"),
                    env=common | {"RANK": str(rank)},
                    stderr=subprocess.PIPE,
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


@pytest.fixture
async def known() -> AsyncIterator[dict[str, str]]:
    """The environment of a job at `aiodist store`, which is ended with it."""
    environ = os.environ | {"AIODIST_JOB": "again", "AIODIST_SECRET": "known"}
    command = (sys.executable, "-m", "aiodist", "store", "--host", "127.0.0.1", "--port", "0")
    store = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE)
    try:
        yield environ | {"AIODIST_STORE": await said(store)}
    finally:
        store.kill()
        await store.communicate()


async def start(what: str, environ: dict[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, what, env=environ, stdout=PIPE)


async def start_all(environ: dict[str, str]) -> list[Process]:
    """Three that are in their group."""
    ranks = [await start("begin", environ | {"RANK": str(rank), "WORLD_SIZE": "3"}) for rank in range(3)]
    assert [await said(rank) for rank in ranks] == [f"{rank} 3 0" for rank in range(3)]
    return ranks


async def said(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def kill(processes: list[Process]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        await process.communicate()


DESERTED = "RendezvousError no member of the job's last run is left that could admit this process. Start"


@pytest.mark.slow("two runs of a job, one after the other")
@pytest.mark.timeout(240)
async def test_all_die_while_a_newcomer_waits_and_all_begin_anew(known: dict[str, str]) -> None:
    ranks = await start_all(known)
    waits = await start("come", known)
    await rings(known)
    await kill(ranks)
    assert (await said(waits)).startswith(DESERTED)
    assert await waits.wait() == 0
    await kill(await start_all(known))


@pytest.mark.slow("two runs of a job, one beside the other")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [1, 3])
async def test_members_that_are_all_cut_off_end_where_all_have_begun_anew(
    known: dict[str, str], count: int
) -> None:
    """None of them has died, so they go on; they find out when they reach the store again, and take nothing
    from the job that goes on now: another one may join it."""
    from tests.support.faults.proxy import FaultProxy  # not by the ranks, which run this file

    host, port = known["AIODIST_STORE"].split(":")
    reached = True

    async def lead() -> tuple[str, int]:
        if not reached:
            raise OSError("cut off")
        return host, int(port)

    async with await FaultProxy.start(lead) as proxy:
        apart = known | {"AIODIST_STORE": f"127.0.0.1:{proxy.address[1]}", "WORLD_SIZE": str(count)}
        before = [await start("stay", apart | {"RANK": str(rank)}) for rank in range(count)]
        assert [await said(rank) for rank in before] == [f"{rank} {count} 0" for rank in range(count)]
        reached = False
        proxy.cut()
        ranks = await start_all(known)
        reached = True
        for rank in before:
            assert (await said(rank)).startswith("Evicted the job has begun anew without this process")
            assert await rank.wait() == 0
        waits = await start("come", known)
        await rings(known)
        assert waits.returncode is None
        await kill([*ranks, waits])


async def rings(environ: dict[str, str]) -> None:
    """A newcomer waits to be admitted."""
    host, port = environ["AIODIST_STORE"].split(":")
    async with (
        await TcpStore.connect(host, int(port), "again", b"known", 10) as store,
        store.watch("aiodist/world/join/") as watch,
    ):
        await anext(watch)


if __name__ == "__main__":
    dist.run({"begin": begin, "come": come, "life": life, "stay": stay}[sys.argv[1]]())
