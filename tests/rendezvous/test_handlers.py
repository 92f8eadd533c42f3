"""From a URL and an environment to a meeting."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous import (
    HashStore,
    Invitation,
    Meeting,
    StoreServer,
    TcpStore,
    claim_rank,
    handlers,
    hosting,
    register_rendezvous_handler,
    this_process,
)
from tests.rendezvous.conftest import Clock
from tests.rendezvous.meeting import rendezvous

HOST = "127.0.0.1"


def environ(rank: int, world_size: int, port: int, **more: str) -> dict[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    return {**place, **more}


@pytest.mark.parametrize("scheme", ["env", "tcp", "file", "store"])
async def test_all_meet(scheme: str, port: int, tmp_path: Path) -> None:
    def call(rank: int) -> asyncio.Task[Meeting]:
        url, env, given = "env://", environ(rank, 3, port), (-1, -1)
        if scheme == "tcp":
            url, env, given = f"tcp://{HOST}:{port}?world_size=3", {}, (rank, -1)
        elif scheme == "file":
            url, env, given = f"file://{tmp_path}/meet%20here?rank={rank}&world_size=3", {}, (-1, -1)
        elif scheme == "store":
            env["AIODIST_STORE"] = f"{HOST}:{server.port}"
        return asyncio.ensure_future(rendezvous(url, *given, timeout=60, environ=env, secret=b"s"))

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await StoreServer.start(HOST, 0, "aiodist", b"s"))
        meetings = [await call(0), *await asyncio.gather(call(2), call(1))]
        cards = await asyncio.gather(
            *(m.store.gather("g", m.world_size, m.rank, b"%d" % m.rank) for m in meetings)
        )
        assert cards == [[b"0", b"1", b"2"]] * 3
        assert [m.rank for m in meetings] == [0, 2, 1]
        assert {m.address for m in meetings} == {HOST}
        assert [m.server is not None for m in meetings] == [scheme in ("env", "tcp"), False, False]
        await asyncio.gather(*(meeting.aclose() for meeting in meetings))
    assert os.listdir(tmp_path) == []


async def test_alone_needs_nothing() -> None:
    async with await rendezvous("env://") as meeting:
        assert isinstance(meeting.store, HashStore)
        assert (meeting.rank, meeting.world_size, meeting.address) == (0, 1, HOST)


HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}


async def test_one_of_several_separate_jobs_is_refused() -> None:
    for variables in (HOROVOD, {"PET_NNODES": "2"}):
        with pytest.raises(UsageError, match=r"=2, but no setting says where this process meets the others"):
            await rendezvous("env://", environ=variables)


@pytest.mark.parametrize("variables", [HOROVOD, {"PET_NNODES": "2"}, {"SLURM_NTASKS": "4"}])
async def test_job_of_one_that_shall_be_one(
    variables: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a store, or an address, could be joined."""
    for more in ({}, {"MASTER_ADDR": HOST, "MASTER_PORT": "1"}, {"AIODIST_STORE": f"{HOST}:1"}):
        async with await rendezvous(
            "env://", environ={**variables, **more, "AIODIST_ALONE": "1"}, timeout=60
        ) as meeting:
            assert isinstance(meeting.store, HashStore)
        async with await rendezvous("env://", environ={**variables, **more}, world_size=1) as meeting:
            assert isinstance(meeting.store, HashStore)
            assert (meeting.rank, meeting.world_size) == (0, 1)
    assert caplog.text == ""


async def test_job_of_one_where_a_variable_speaks_of_more_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with await rendezvous("env://", environ={"SLURM_NTASKS": "4"}) as meeting:
        assert meeting.world_size == 1
    assert "SLURM_NTASKS=4, but no setting says which process of how many this is" in caplog.text
    assert "AIODIST_ALONE=1" in caplog.text


@pytest.mark.parametrize("more", [{}, {"MASTER_ADDR": HOST}])
async def test_a_rank_0_of_1_where_a_launcher_counts_more_is_warned_of(
    more: dict[str, str], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Left over in the shell, or of one torchrun in each task of a step."""
    mine = {"RANK": "0", "WORLD_SIZE": "1", **(more and {**more, "MASTER_PORT": str(port)})}
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "AIODIST_SECRET": "s"}
    async with await rendezvous("env://", environ={**mine, **step}, timeout=60) as meeting:
        assert (meeting.rank, meeting.world_size) == (0, 1)
    [said] = [line for line in caplog.messages if "SLURM" in line]
    assert said.startswith("SLURM_STEP_NUM_TASKS=2, but this is a job of one: RANK=0 WORLD_SIZE=1. Unset")
    caplog.clear()
    for alone in ({"AIODIST_ALONE": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        async with await rendezvous("env://", environ={**mine, **step, **alone}, timeout=60):
            pass
    assert "SLURM" not in caplog.text


async def test_the_users_store_stays_open() -> None:
    async with HashStore() as store:
        async with Meeting(store, 0, 1, owns_store=False):
            pass
        await store.set("k", "v")


async def test_the_host_lingers(port: int) -> None:
    host, guest = await asyncio.gather(
        *(rendezvous("env://", timeout=60, environ=environ(rank, 2, port)) for rank in range(2))
    )
    closing = asyncio.ensure_future(host.aclose())
    await guest.store.set("k", "v")
    assert await guest.store.get("k") == b"v"
    assert not closing.done()
    await guest.aclose()
    await closing


@pytest.mark.parametrize("scheme", ["env", "file"])
async def test_who_is_early_for_the_next_meeting_does_not_take_the_store_of_the_one_before(
    scheme: str, port: int, tmp_path: Path
) -> None:
    url = "env://" if scheme == "env" else f"file://{tmp_path}/meet"

    def meet(rank: int) -> Coroutine[Any, Any, Meeting]:
        return rendezvous(url, timeout=60, environ=environ(rank, 2, port))

    def instance(meeting: Meeting) -> bytes:
        return cast("TcpStore", getattr(meeting.store, "client", meeting.store)).instance

    host = await meet(0) if scheme == "file" else None
    both = await asyncio.gather(meet(0), meet(1)) if host is None else [host, await meet(1)]
    host, guest = both
    before = instance(guest)
    guest.formed()
    await guest.aclose()
    early = asyncio.ensure_future(meet(1))
    for _ in range(200):
        await asyncio.sleep(0)  # it finds the old store
    await host.aclose()
    async with await meet(0) as host, await early as guest:
        assert instance(guest) == instance(host) != before


@pytest.mark.parametrize("looks", [1, 2], ids=["between two looks", "in the middle of the second"])
async def test_who_is_early_for_the_next_meeting_waits_only_so_long(
    looks: int,
    port: int,
    clock: Clock,
    run_out_of_time: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[object] = []

    async def connect(*given: Any, **named: Any) -> TcpStore:
        looked.append(given)
        store = await TcpStore.connect(*given, **named)
        if looks == 1:
            clock.forward(60)
        run_out_of_time()
        return store

    async with await rendezvous("env://", timeout=60, environ=environ(0, 2, port)):
        async with await rendezvous("env://", timeout=60, environ=environ(1, 2, port)) as guest:
            guest.formed()
        monkeypatch.setattr(hosting, "TcpStore", SimpleNamespace(connect=connect))
        said = (
            rf"^no store for the next group at {HOST}:{port} within 30 s: .* that of the group before\. Close"
        )
        with pytest.raises(RendezvousTimeout, match=said):
            await rendezvous("env://", timeout=30, environ=environ(1, 2, port))
    assert len(looked) == looks


# Bad input.


async def test_master_port_in_use(port: int) -> None:
    async with await StoreServer.start(HOST, port, "other", b""):
        with pytest.raises(RendezvousError, match=rf"port {port} on {HOST} is in use by pid {os.getpid()}"):
            await rendezvous("env://", timeout=60, environ=environ(0, 2, port))


async def test_what_is_not_the_store_of_torchrun_is_named(port: int) -> None:
    env = environ(0, 2, port, TORCHELASTIC_RUN_ID="r", TORCHELASTIC_USE_AGENT_STORE="True")
    async with await StoreServer.start(HOST, port, "other", b""):
        with pytest.raises(RendezvousError, match=rf"{port}, pid {os.getpid()}.* is not torchrun's store"):
            await rendezvous("env://", timeout=60, environ=env)


async def test_master_addr_unreachable(port: int, run_out_of_time: Callable[[], None]) -> None:
    run_out_of_time()
    with pytest.raises(RendezvousTimeout, match=rf"{HOST}:{port} \(Connection refused\) after 60 s"):
        await rendezvous("env://", timeout=60, environ=environ(1, 2, port))


async def test_master_addr_of_another_host() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}
    with pytest.raises(RendezvousError, match=r"192.0.2.1: it is not an address of this host .* Run rank 0"):
        await rendezvous("env://", timeout=1, environ=env, secret=b"s")
    async with await rendezvous("tcp://192.0.2.1:0", 0, 1, 1, {"AIODIST_HOST": HOST}, b"s") as meeting:
        assert meeting.server is not None and meeting.server.host == HOST


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
async def test_a_missing_variable_is_named(name: str) -> None:
    env = environ(0, 2, 29500)
    del env[name]
    with pytest.raises(UsageError, match=rf"^{name} is not set"):
        await rendezvous("env://", timeout=1, environ=env)


async def test_two_processes_with_one_rank(port: int) -> None:
    async with await rendezvous("env://", timeout=60, environ=environ(0, 2, port)) as host:
        async with await rendezvous("env://", timeout=60, environ=environ(1, 2, port)) as one:
            await claim_rank(one.store, 1, b"pid 4711 on host a")
            async with await rendezvous("env://", timeout=60, environ=environ(1, 2, port)) as two:
                said = r"^rank 1 is taken by pid 4711 on host a; this is pid \d+ on host .*\. Give each"
                with pytest.raises(RendezvousError, match=said):
                    await claim_rank(two.store, 1, this_process())
        assert host.rank == 0


async def test_the_wrong_secret(port: int) -> None:
    async with await rendezvous("env://", timeout=60, environ=environ(0, 2, port), secret=b"right"):
        with pytest.raises(AuthenticationError, match="another secret"):
            await rendezvous("env://", timeout=60, environ=environ(1, 2, port), secret=b"wrong")


async def test_no_open_port_without_a_secret(port: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"tcp://0.0.0.0:{port}?rank=0&world_size=1"
    with pytest.raises(UsageError, match=r"without a secret.*AIODIST_SECRET"):
        await rendezvous(url, timeout=5)
    with pytest.raises(UsageError, match="without a secret"):
        await rendezvous("file:///nowhere", 0, 1, 5, {"AIODIST_HOST": "192.0.2.1"})
    async with await rendezvous(url, timeout=5, secret=b"s") as meeting:
        assert meeting.server is not None
    assert "listens on every address of this host, as 0.0.0.0 says" in caplog.text
    async with await rendezvous(url, timeout=5, environ={"AIODIST_ALLOW_INSECURE": "1"}) as meeting:
        assert meeting.server is not None


async def test_a_name_that_means_loopback_is_pointed_out(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        return [(socket.AF_INET, ("127.0.1.1", port))]

    monkeypatch.setattr(hosting, "resolve", resolve)
    monkeypatch.setattr("aiodist.net.sockets.resolve", resolve)
    env = environ(0, 4, port, MASTER_ADDR="node-1", LOCAL_WORLD_SIZE="2")
    with caplog.at_level(logging.INFO):
        async with await rendezvous("env://", timeout=5, environ=env):
            pass
    assert "node-1 is 127.0.1.1 here" in caplog.text
    assert f"a store listens on 127.0.1.1:{port}, which is what 'node-1' means here" in caplog.text


async def test_peers_are_told_what_the_user_says(port: int) -> None:
    url = f"tcp://{HOST}:{port}?rank=0&world_size=1"
    async with await rendezvous(url, timeout=5, environ={"AIODIST_HOST": "10.1.2.3"}) as meeting:
        assert meeting.address == "10.1.2.3"
    async with await rendezvous(url, timeout=5, environ={"AIODIST_SOCKET_IFNAME": "lo"}) as meeting:
        assert meeting.address == HOST
    with pytest.raises(UsageError, match="no network interface"):
        await rendezvous(url, timeout=5, environ={"AIODIST_SOCKET_IFNAME": "nope0"})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zk://h:1", r"no known scheme\. There are: env://, tcp://, file://"),
        ("here", "no known scheme"),
        ("tcp://h", "is not host:port"),
        ("tcp:/h:1", "'tcp:/h:1' names no address. Write tcp://host:port"),
        ("tcp://h:1", "needs rank and world_size"),
        ("tcp://h:1?rank=x&world_size=2", "rank in init_method=.* is not a number"),
        ("tcp://h:0?rank=0&world_size=2", "names no port"),
        ("tcp://h:1?rank=2&world_size=2", "rank=2 is not in a world"),
        ("file://relative/path?rank=0&world_size=1", "names no file"),
        ("file:///path", "needs rank and world_size"),
    ],
)
async def test_senseless_urls(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        await rendezvous(url, timeout=1)


async def test_schemes_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_handlers", dict(handlers._handlers))

    async def mine(invitation: Invitation) -> Meeting:
        assert (invitation.rank, invitation.world_size, invitation.timeout) == (1, 2, 7.0)
        return Meeting(HashStore(), 1, 2, address=invitation.parts.netloc)

    register_rendezvous_handler("mine", mine)
    async with await rendezvous("mine://there?rank=1", world_size=2, timeout=7) as meeting:
        assert meeting.address == "there"
    for scheme in ("mine", "tcp"):
        with pytest.raises(UsageError, match="already"):
            register_rendezvous_handler(scheme, mine)
    for scheme in ("", "Mine", "a b", "a:"):
        with pytest.raises(UsageError, match="not a URL scheme"):
            register_rendezvous_handler(scheme, mine)
