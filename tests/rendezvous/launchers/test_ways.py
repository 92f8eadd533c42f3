"""Where ranks meet, as Slurm's and torchrun's variables have it; without either."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from aiodist.errors import AuthenticationError, RendezvousTimeout, UsageError
from aiodist.net.sockets import listen
from aiodist.rendezvous import Meeting, StoreServer
from aiodist.rendezvous.launchers import agent_store, slurm
from aiodist.rendezvous.launchers.agent_store import AgentStore
from tests.rendezvous.conftest import Clock
from tests.rendezvous.meeting import rendezvous

HOST = "127.0.0.1"


def task(rank: int, **more: str) -> dict[str, str]:
    """The variables of one of two tasks on two nodes."""
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}
    nodes = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[0-1]"}
    return {**step, **nodes, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), **more}


async def meet(environs: Sequence[dict[str, str]]) -> tuple[list[bytes], tuple[str, int]]:
    """Meet → what the last rank finds of all, and where rank 0's store listens."""

    async def one(environ: dict[str, str]) -> Meeting:
        return await stack.enter_async_context(
            await rendezvous("env://", timeout=60, environ=environ, secret=b"s")
        )

    async with AsyncExitStack() as stack:
        meetings = await asyncio.gather(*map(one, environs))
        left = await asyncio.gather(
            *(m.store.gather("g", m.world_size, m.rank, b"%d" % m.rank) for m in meetings)
        )
        assert meetings[0].server is not None
        return left[-1], (meetings[0].server.host, meetings[0].server.port)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give this host a name, and every name an address, or none."""

    def name(own: str, address: str | None) -> None:
        async def resolve(host: str, port: int) -> list[Any]:
            if address is None:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [(socket.AF_INET, (address, port))]

        monkeypatch.setattr(socket, "gethostname", lambda: own)
        monkeypatch.setattr(slurm, "resolve", resolve)

    return name


@pytest.mark.parametrize("address", ["127.0.1.1", None], ids=["loopback", "unknown"])
async def test_where_others_come_to_if_the_own_name_leads_nowhere(
    address: str | None, named: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named("n0.cluster", address)
    monkeypatch.setattr(slurm, "outward", lambda: "127.0.0.5")
    found, (host, _) = await meet([task(0), task(1)])
    assert found == [b"0", b"1"]
    assert host == "127.0.0.5"


async def test_another_hosts_name_that_is_this_host_here(
    named: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Several nodes may be one host, of a developer: it is a warning."""
    named("somewhere", "127.0.0.6")
    environ = {**task(0), "SLURM_STEP_NODELIST": "127.0.0.6"}
    found, (host, _) = await meet([environ, {**environ, "SLURM_PROCID": "1"}])
    assert (found, host) == ([b"0", b"1"], "127.0.0.6")
    warned = {r.message for r in caplog.records if r.levelno == logging.WARNING}
    assert "127.0.0.6 is 127.0.0.6 here; if it is another host, set MASTER_ADDR to its address" in warned


async def test_half_of_the_place_may_be_set(port: int) -> None:
    only_host = [task(rank, MASTER_ADDR="127.0.0.7") for rank in range(2)]
    assert (await meet(only_host))[1] == ("127.0.0.7", slurm.port("4711", "3"))
    one_node = {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    only_port = [task(rank, MASTER_PORT=str(port), **one_node) for rank in range(2)]
    assert (await meet(only_port))[1] == (HOST, port)


async def test_steps_that_have_one_port_do_not_mix(port: int) -> None:
    """Without names of their own, both jobs would be 'aiodist'."""
    where = {"MASTER_PORT": str(port), "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    async with await StoreServer.start(HOST, port, "step 4711.3", b"s"):
        with pytest.raises(AuthenticationError, match=r"step 4711\.3.*step 4712\.0"):
            other = task(1, **where, SLURM_JOB_ID="4712", SLURM_STEP_ID="0")
            await rendezvous("env://", timeout=60, environ=other, secret=b"s")


async def test_agents_that_count_restarts_differently(
    distributed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One agent's worker failed, the other's were only started anew. The store has rank 0 of before still."""
    store = distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with await listen(HOST, 0) as gone:
        before = gone.getsockname()[1]
    store.set("aiodist/x/7", f"{HOST}:{before}")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": HOST, "MASTER_PORT": str(store.port)}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x", **place}
    monkeypatch.setattr(agent_store, "_meetings", iter((7, 7)))  # as two processes count
    found, _ = await meet([{**agent, "RANK": str(r), "TORCHELASTIC_RESTART_COUNT": str(r)} for r in range(2)])
    assert found == [b"0", b"1"]


async def test_rank_0_that_named_an_address_where_nobody_listens(clock: Clock) -> None:
    class Board:
        async def get(self, key: str, timeout: float) -> str:
            clock.forward(60)
            return f"{HOST}:{before}"

    async with await StoreServer.start(HOST, 0, "x", b"s") as gone:
        before = gone.port
    with pytest.raises(
        RendezvousTimeout, match=rf"^nobody listened on {HOST}:{before}, .* within 30 s\. See"
    ):
        await agent_store._told(cast("AgentStore", Board()), "key", 30)


async def test_nothing_says_where_rank_0_is() -> None:
    with pytest.raises(UsageError, match=r"on which of n\[0-1\] rank 0 is: SLURM_DISTRIBUTION=arbitrary"):
        await rendezvous("env://", timeout=60, environ=task(1, SLURM_DISTRIBUTION="arbitrary"), secret=b"s")


async def test_several_hosts_are_only_named_where_a_variable_says_so() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(
        UsageError, match=r"the 4 processes of this mpirun where to meet\. mpirun -x MASTER_A"
    ):
        await rendezvous("env://", environ=environ)
    with pytest.raises(UsageError, match="the 4 processes of this mpirun on several hosts where to meet"):
        await rendezvous("env://", environ={**environ, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
