"""Where ranks meet, as Slurm's and torchrun's variables have it; without either."""

from __future__ import annotations

import asyncio
import http.server
import logging
import re
import socket
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError, RendezvousTimeout, UsageError
from aiodist.net.sockets import listen
from aiodist.rendezvous import Invitation, Meeting, StoreServer
from aiodist.rendezvous.announcement import About, Announcement
from aiodist.rendezvous.launchers import address_exchange as told
from aiodist.rendezvous.launchers import jax_group, slurm, torch_group
from tests.rendezvous.conftest import Clock
from tests.rendezvous.meeting import rendezvous

HOST = "127.0.0.1"


def about(key: str) -> About:
    """What a line of job 'x' under a key is about."""
    return About("the address of rank 0", "x", key, b"s")


def announced(port: int, key: str) -> str:
    """The line that rank 0 of job 'x' leaves under a key, of a store that was its own."""
    return Announcement(HOST, port, b"i" * 16).text(about(key))


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
    store.set("aiodist/x/7", announced(before, "aiodist/x/7"))
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": HOST, "MASTER_PORT": str(store.port)}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x", **place}
    monkeypatch.setattr(told, "_meetings", iter((7, 7)))  # as two processes count
    found, _ = await meet([{**agent, "RANK": str(r), "TORCHELASTIC_RESTART_COUNT": str(r)} for r in range(2)])
    assert found == [b"0", b"1"]


async def test_rank_0_that_named_an_address_where_nobody_listens(clock: Clock) -> None:
    class Texts:
        async def set(self, key: str, value: str) -> None:
            raise NotImplementedError

        async def read(self, key: str) -> str:
            clock.forward(60)
            return announced(before, key)

    async with await StoreServer.start(HOST, 0, "x", b"s") as gone:
        before = gone.port
    with pytest.raises(
        RendezvousTimeout, match=rf"^no process listened on {HOST}:{before}, .* within 30 s\. See"
    ):
        await told._announced(Texts(), "the store", "key", 30, about("key"))


async def test_nothing_says_where_rank_0_is() -> None:
    with pytest.raises(UsageError, match=r"one of n\[0-1\], is not known: SLURM_DISTRIBUTION=arbitrary"):
        await rendezvous("env://", timeout=60, environ=task(1, SLURM_DISTRIBUTION="arbitrary"), secret=b"s")


async def test_several_hosts_are_only_named_where_a_variable_says_so() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(
        UsageError, match=r"the 4 processes of this mpirun where to meet\. mpirun -x MASTER_A"
    ):
        await rendezvous("env://", environ=environ)


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, True),
        ({"OMPI_MCA_orte_num_nodes": "1"}, False),  # Open MPI 4 has read it
        ({"PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile"}, False),
    ],
)
async def test_open_mpi_5_that_passes_over_a_hostfile(
    more: dict[str, str], warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a pod of the MPI Operator's launcher: the whole job would run there, and end well."""
    job = {"PMIX_NAMESPACE": "j", "PMIX_SERVER_TMPDIR": str(tmp_path), "OMPI_COMM_WORLD_SIZE": "2"}
    job |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile", **more}

    async def one(rank: str) -> Meeting:
        environ = {**job, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        return await stack.enter_async_context(
            await rendezvous("env://", timeout=60, environ=environ, secret=b"s")
        )

    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(one, "01"))
    said = [r.message for r in caplog.records if "Open MPI 5 does not read" in r.message]
    assert len(said) == warned
    assert all("all 2 processes of this mpirun are on this host" in one for one in said)


# A port that is left to another library.


def shares(rank: int, port: int, **more: str) -> dict[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    return {**place, "AIODIST_SHARE_PORT": "1", **more}


async def test_a_shared_port_is_free_when_all_have_met(port: int) -> None:
    found, (host, stands) = await meet([shares(rank, port) for rank in (0, 2, 1)])
    assert sorted(found) == [b"0", b"1", b"2"] and host == HOST and stands != port
    async with AsyncExitStack() as stack:
        meetings = [
            rendezvous("env://", timeout=60, environ=shares(rank, port), secret=b"s") for rank in range(3)
        ]
        for meeting in await asyncio.gather(*meetings):
            await stack.enter_async_context(meeting)
        (await listen(HOST, port)).close()  # while the group lives


async def test_jax_s_coordinator_has_its_port_afterwards(port: int) -> None:
    environ = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": f"{HOST}:{port}"}
    found, (_, stands) = await meet([{**environ, "JAX_PROCESS_ID": str(rank)} for rank in range(2)])
    assert found == [b"0", b"1"] and stands != port
    (await listen(HOST, port)).close()


async def test_who_does_not_come_to_a_shared_port_is_named(port: int) -> None:
    rank_0 = rendezvous("env://", timeout=0.3, environ=shares(0, port), secret=b"s")
    rank_2 = rendezvous("env://", timeout=60, environ=shares(2, port), secret=b"s")
    late = asyncio.ensure_future(rank_2)
    with pytest.raises(RendezvousTimeout, match="rank 1 did not come") as caught:
        await rank_0
    assert caught.value.missing_ranks == (1,)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    (await listen(HOST, port)).close()


async def test_a_port_in_use_says_both_ways_out() -> None:
    with await listen(HOST, 0) as sock:
        environ = shares(0, sock.getsockname()[1], AIODIST_SHARE_PORT="0")
        with pytest.raises(
            RendezvousError, match=r"initialise it before aiodist, or set AIODIST_SHARE_PORT=1"
        ):
            await rendezvous("env://", timeout=60, environ=environ, secret=b"s")


# Other launchers' and libraries' stores.


class KeyValues(http.server.BaseHTTPRequestHandler):
    """The answers of horovodrun's store."""

    texts: ClassVar[dict[str, bytes]] = {}
    fails = False

    def do_PUT(self) -> None:
        _, _, _ = self.path.split("/")  # a scope and a key
        self.texts[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(500 if self.fails else 200)

    def do_GET(self) -> None:
        self.answer(200 if self.path in self.texts else 404, self.texts.get(self.path, b""))

    def answer(self, status: int, text: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def key_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of such a store."""
    monkeypatch.setattr(KeyValues, "texts", {})
    with http.server.HTTPServer((HOST, 0), KeyValues) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def of_horovod(rank: int, port: int) -> dict[str, str]:
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", "AIODIST_SECRET": "never to be told", **store}


async def test_horovodrun_s_store_has_the_address_and_nothing_else(
    key_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "_meetings", iter((3, 3)))
    found, (host, stands) = await meet([of_horovod(rank, key_values) for rank in (0, 1)])
    assert sorted(found) == [b"0", b"1"]
    [(path, line)] = KeyValues.texts.items()
    assert path == "/aiodist/aiodist%2Faiodist%2F3"
    assert re.fullmatch(rf"{host}:{stands} [0-9a-f]{{32}} [0-9a-f]{{64}}", line.decode())


async def test_horovodrun_s_store_that_fails_or_is_gone(
    key_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyValues, "fails", True)
    with pytest.raises(
        RendezvousError, match=rf"^horovodrun's store at {HOST}:{key_values} fails: it answers 500"
    ):
        await rendezvous("env://", timeout=60, environ=of_horovod(0, key_values), secret=b"s")
    with await listen(HOST, 0) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(
        RendezvousError, match=rf"^horovodrun's store at {HOST}:{port} fails: Connection refused"
    ):
        await rendezvous("env://", timeout=60, environ=of_horovod(1, port), secret=b"s")
    with pytest.raises(RendezvousTimeout, match=r"^rank 0 named no address within 0.1 s"):
        await rendezvous("env://", timeout=0.1, environ=of_horovod(1, key_values), secret=b"s")


class Client:
    """The part of JAX's client that is used."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        self.texts[key] = value

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        if key not in self.texts:
            raise RuntimeError("DEADLINE_EXCEEDED: no such key")
        return self.texts[key]


async def test_jax_says_which_process_this_is_and_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.SimpleNamespace(
        client=Client(), process_id=1, num_processes=2, coordinator_address=f"{HOST}:1"
    )
    assert jax_group.rank_and_size() is None
    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.SimpleNamespace(global_state=state))
    assert jax_group.rank_and_size() == (1, 2)
    monkeypatch.setattr(told, "_meetings", iter((0, 0)))
    ranks = [Invitation.of("env://", rank, 2, 60.0, {}) for rank in range(2)]
    meetings = await asyncio.gather(*map(jax_group.meet, ranks))
    assert [meeting.rank for meeting in meetings] == [0, 1]
    assert meetings[0].server is not None
    [line] = state.client.texts.values()
    assert line.partition(" ")[0] == f"{HOST}:{meetings[0].server.port}"
    for meeting in reversed(meetings):
        await meeting.aclose()
    state.client = None
    assert jax_group.rank_and_size() is None
    with pytest.raises(RendezvousError, match="not initialised any more"):
        await jax_group.meet(ranks[0])


async def test_torch_that_is_not_initialised_says_nothing(distributed: Any) -> None:
    assert torch_group.rank_and_size() is None
    with pytest.raises(RendezvousError, match="not initialised any more"):
        await torch_group.meet(Invitation.of("env://", 0, 2, 60.0, {}))
