"""Who leads a process to the wrong store: by what lies in a launcher's open store, or from the path.

Jobs of one user have one secret (`~/.aiodist/secret`), and often one name. So what an attacker has is: a
store of another such job, all that was ever announced, and every packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.base.errors import AuthenticationError, PeerLost
from aiodist.group.runtime.joining import join
from aiodist.group.runtime.member import Member
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.head import Head
from aiodist.launch.nodes.meeting import meet
from aiodist.launch.nodes.roster import Member as Node
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.net import local_socket
from aiodist.net.sockets import connect, port_owner
from aiodist.rendezvous import Invitation, Meeting, StoreServer, TcpStore, hosting
from aiodist.rendezvous.announcement import About, Announcement
from aiodist.rendezvous.launchers import address_exchange as told
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace
from aiodist.transport import SocketEndpoint
from tests.levels import few
from tests.rendezvous.launchers.test_ways import KeyValues
from tests.rendezvous.meeting import rendezvous
from tests.security.relay import HOST, Relay
from tests.waiting import until_so

SECRET = b"a secret that nobody will ever guess"
KEY = "aiodist/job/0"


class OpenStore:
    """A launcher's store that everybody may read and write."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._server = http.server.ThreadingHTTPServer((HOST, 0), KeyValues) if kind == "horovod" else None
        if self._server is not None:
            KeyValues.texts.clear()
            self.port = self._server.server_port
            self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
            self._thread.start()
        else:
            import torch.distributed as torch

            self._torch: Any = torch.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            self.port = self._torch.port

    def read(self) -> str | None:
        if self._server is not None:
            line = KeyValues.texts.get(f"/aiodist/{KEY.replace('/', '%2F')}")
            return None if line is None else line.decode()
        return self._torch.get(KEY).decode() if self._torch.check([KEY]) else None

    def write(self, line: str) -> None:
        if self._server is not None:
            KeyValues.texts[f"/aiodist/{KEY.replace('/', '%2F')}"] = line.encode()
        else:
            self._torch.set(KEY, line)

    def environ(self, rank: int) -> dict[str, str]:
        """Of a rank that meets by this store."""
        if self._server is not None:
            place = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST}
            place["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(self.port)
        else:
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": HOST, "MASTER_PORT": str(self.port)}
            place["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        return {**place, "AIODIST_JOB": "job"}

    def meet(self, rank: int, timeout: float = 30) -> asyncio.Task[Meeting]:
        """Begin to meet as a rank."""
        meeting = rendezvous("env://", timeout=timeout, environ=self.environ(rank), secret=SECRET)
        return asyncio.ensure_future(meeting)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture(scope="session", autouse=True)
def torch_began() -> None:
    """Of torch's first store something stays for the process's life."""
    with contextlib.suppress(ImportError):
        import torch.distributed as torch

        torch.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@pytest.fixture(params=["torchrun", "horovod"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A launcher whose store is open. Every rank meets for the first time."""
    kind: str = request.param
    if kind == "torchrun":  # here, before a test opens anything
        pytest.importorskip("torch.distributed", reason="torch is not installed")
    monkeypatch.setattr(told, "_meetings", iter([0] * 9))
    monkeypatch.setattr(told, "_FALSE", 0.0)
    return kind


async def line_of(store: OpenStore) -> str:
    """What rank 0 announces there."""
    await until_so(lambda: store.read() is not None)
    line = store.read()
    assert line is not None
    return line


def about(secret: bytes = SECRET, job: str = "job", meeting: str = KEY) -> About:
    return About("the address of rank 0", job, meeting, secret)


FORGED = {
    "an address": lambda line, there: f"{HOST}:{there.port}",
    "the proof of rank 0's behind another address": lambda line, there: " ".join(
        [f"{HOST}:{there.port}", *line.split()[1:]]
    ),
    "the proof of rank 0's behind another store": lambda line, there: " ".join(
        [line.split()[0], b"another instance".hex(), line.split()[2]]
    ),
    "another secret": lambda line, there: there.text(about(b"guessed")),
    "another job of that secret": lambda line, there: there.text(about(job="other")),
    "another meeting of this job": lambda line, there: there.text(about(meeting="aiodist/job/1")),
    "no line at all": lambda line, there: "\x1b[2Jnonsense " * 40,
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_an_address_that_was_overwritten(forge: Any, kind: str) -> None:
    """The attacker leads to a relay of its own, and wants to stand between the ranks."""
    relay = Relay()
    with closing(OpenStore(kind)) as store:
        rank_0 = store.meet(0)
        line = await line_of(store)
        meeting = await rank_0
        assert meeting.server is not None
        relay.target = (meeting.server.host, meeting.server.port)
        store.write(forge(line, Announcement(*relay.address, meeting.server.instance)))
        with pytest.raises(AuthenticationError, match=r"is not valid|another secret") as caught:
            await store.meet(1)
        assert "\x1b" not in str(caught.value) and SECRET.decode() not in str(caught.value)
        assert relay.connections == 0
        store.write(line)  # and where it is right, they meet
        async with await store.meet(1) as other:
            await other.store.set("from", b"1")
            assert await meeting.store.get("from") == b"1"
        await meeting.aclose()
    await relay.aclose()


async def test_rank_0_that_comes_later_writes_over_what_was_forged(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "_FALSE", 20.0)
    with closing(OpenStore(kind)) as store:
        store.write("127.0.0.1:9")
        early = store.meet(1)
        await asyncio.sleep(0.05)  # it has looked, or not: either is well
        async with await store.meet(0), await early as meeting:
            assert meeting.rank == 1


async def test_what_another_job_of_this_name_and_secret_announces(kind: str) -> None:
    """It is genuine, and the store lives; but that job meets elsewhere."""
    with closing(OpenStore(kind)) as store:
        mine = store.meet(0)
        line = await line_of(store)
        async with await mine as meeting:
            with closing(OpenStore(kind)) as elsewhere:
                elsewhere.write(line)
                where = rf"meets at {HOST}:{store.port}, and this process was told .* {HOST}:{elsewhere.port}"
                with pytest.raises(AuthenticationError, match=where):
                    await elsewhere.meet(1)
            await meeting.store.set("still", b"served")


async def test_a_line_of_a_store_that_is_gone(kind: str) -> None:
    """Somebody listens where it was, and passes on to another store of this job, name and secret."""
    relay = Relay()
    async with await StoreServer.start(HOST, 0, "job", SECRET) as another:
        relay.target = (HOST, another.port)
        with closing(OpenStore(kind)) as store:
            store.write(Announcement(*relay.address, b"the one that was").text(about()))
            with pytest.raises(AuthenticationError, match="another process has taken that address"):
                await store.meet(1)
        assert another.clients == 0 and relay.connections
    await relay.aclose()


async def test_without_a_secret_only_the_loopback_is_believed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the kernel says whose process listens. Elsewhere it may be anybody's who wrote the line."""

    async def listens(address: tuple[str, int], patience: float) -> bool:
        return True

    monkeypatch.setattr(told, "listens", listens)
    with closing(OpenStore(kind)) as store:
        store.write(Announcement("192.0.2.7", 29500, b"of the stranger.").text(about(b"")))
        with pytest.raises(
            AuthenticationError, match=r"^rank 0 is published to be at 192\.0\.2\.7.*no secret"
        ):
            await rendezvous("env://", timeout=30, environ=store.environ(1))


def test_a_secret_is_not_shown() -> None:
    assert SECRET.decode() not in repr(about()) + repr(StoreAccess("job", SECRET.decode()))


# Between two jobs that meet at addresses.


def member(rank: int, port: int, **more: str) -> dict[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    return {**place, "AIODIST_JOB": "job", **more}


async def meets(rank: int, port: int, **more: str) -> Meeting:
    return await rendezvous("env://", timeout=30, environ=member(rank, port, **more), secret=SECRET)


@asynccontextmanager
async def led_astray(port: int, **more: str) -> AsyncIterator[tuple[Relay, Meeting]]:
    """Rank 0 of a job, and a relay to its store from where another job of its name and secret meets."""
    relay = Relay()
    try:
        async with await meets(0, port, **more) as meeting:
            assert meeting.server is not None
            relay.target = (meeting.server.host, meeting.server.port)
            yield relay, meeting
    finally:
        await relay.aclose()


ANOTHER = r"^the store that answers at .* is that of a job which meets at .*, and this process was told to "


@pytest.mark.parametrize("more", few([{}, {"AIODIST_SHARE_PORT": "1"}], [{}]), ids=["address", "shared port"])
async def test_a_rank_that_is_led_to_another_job(port: int, more: dict[str, str]) -> None:
    relay = Relay()
    other = asyncio.ensure_future(meets(0, port, **more))
    if more:
        await until_so(lambda: port_owner(port))  # rank 0 waits there for the others
    else:
        await other
    relay.target = (HOST, port)
    with pytest.raises(AuthenticationError, match=ANOTHER) as caught:
        await meets(1, relay.address[1], **more)
    assert caught.value.hint.startswith("Give all ranks the same MASTER_ADDR and MASTER_PORT")
    async with await meets(1, port, **more), await other:
        pass
    await relay.aclose()


async def test_tcp_urls_and_newcomers_are_led_nowhere(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_SECRET", SECRET.decode())
    monkeypatch.setenv("AIODIST_JOB", "job")
    async with led_astray(port) as (relay, _meeting):
        url = f"tcp://{HOST}:{relay.address[1]}"
        with pytest.raises(AuthenticationError, match=ANOTHER):
            await rendezvous(f"{url}?rank=1&world_size=2", environ={"AIODIST_JOB": "job"}, secret=SECRET)
        with pytest.raises(AuthenticationError, match=ANOTHER):
            await join(init_method=url, timeout=30)


async def test_tasks_of_another_step(port: int) -> None:
    """Slurm's steps are told apart by their numbers, also where the user has given them one name."""

    def task(rank: int, step: str, at: int) -> dict[str, str]:
        numbers = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "2"}
        nodes = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n0", "SLURM_NODEID": "0"}
        place = {"SLURM_PROCID": str(rank), "MASTER_PORT": str(at), "AIODIST_JOB": "job"}
        return {**numbers, **nodes, **place}

    async with await rendezvous("env://", timeout=30, environ=task(0, "3", port), secret=SECRET):
        with pytest.raises(AuthenticationError, match=r"meets at step 4711\.3, .* step 4711\.4"):
            await rendezvous("env://", timeout=30, environ=task(1, "4", port), secret=SECRET)
        async with await rendezvous("env://", timeout=30, environ=task(1, "3", port), secret=SECRET):
            pass


@pytest.mark.parametrize(
    ("at_rank_0", "at_rank_1"),
    [
        ("127.0.0.1", "localhost"),
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "localhost"),
        ("127.0.0.5", "127.0.0.5"),
    ],
)
@pytest.mark.parametrize("short", [True, False], ids=["local socket", "TCP"])
async def test_names_of_one_place(
    at_rank_0: str, at_rank_1: str, short: bool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is refused for saying it otherwise."""
    if not short:
        monkeypatch.setattr(local_socket, "_connect_local", lambda host, port: None)
    async with (
        await meets(0, port, MASTER_ADDR=at_rank_0) as one,
        await meets(1, port, MASTER_ADDR=at_rank_1) as other,
    ):
        await other.store.set("key", b"value")
        assert await one.store.get("key") == b"value"


async def test_behind_an_address_that_is_not_its_own(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address translation, or a service's address: rank 0 says by AIODIST_HOST what its host has."""
    outside, relay = "192.0.2.7", Relay()
    relay.target = (HOST, port)

    async def translated(host: str, at: int) -> Any:
        there = relay.address if host == outside else (host, at)
        return await connect(*there), HOST

    monkeypatch.setattr("aiodist.rendezvous.client.connect_to_store", translated)
    rank_0 = await meets(0, port, MASTER_ADDR=outside, AIODIST_HOST=HOST)
    for name in (outside, HOST):
        async with await meets(1, port, MASTER_ADDR=name) as other:
            await other.store.set("key", b"value")
    assert relay.connections == 1
    await rank_0.aclose()
    await relay.aclose()


def test_places() -> None:
    a, b = MeetingPlace.at("node-a", 29500), MeetingPlace.at("node-b", 29500)
    seen_a, seen_b = a.seen_at("10.0.0.1", 29500), b.seen_at("10.0.0.2", 29500)
    assert seen_a.is_where(seen_a) and seen_a.is_where(a) and seen_a.is_where(b)
    assert not seen_a.is_where(seen_b) and not seen_b.is_where(seen_a)
    assert seen_a.is_where(MeetingPlace.at("10.0.0.1", 29500, "10.0.0.1"))
    assert not seen_a.is_where(MeetingPlace.at("10.0.0.1", 29501, "10.0.0.1"))
    assert MeetingPlace.at("NODE-A", 29500) == a
    assert NOWHERE.is_where(seen_a) and seen_a.is_where(NOWHERE)
    assert MeetingPlace.at("0.0.0.0", 1, "0.0.0.0").found == MeetingPlace.at("::", 1, "::").found == ""
    assert MeetingPlace.at("::1", 1, "::1").shown == "[::1]:1"


def test_loopbacks_of_two_hosts_are_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    here = MeetingPlace.at("localhost", 29500, HOST)
    monkeypatch.setattr("aiodist.rendezvous.meeting_place.host_key", lambda: "another host")
    there = MeetingPlace.at("localhost", 29500, HOST)
    assert not here.is_where(there) and not there.is_where(here)
    assert here.shown == there.shown == "localhost:29500"


@pytest.mark.parametrize(("local", "fits"), [("2", False), ("1", True)])
async def test_a_launcher_s_store_on_a_loopback(local: str, fits: bool) -> None:
    """Other hosts call it otherwise, unless there are none. That of another port is another in any case."""
    asked = Invitation.of("env://", -1, -1, 30.0, {**member(0, 1), "LOCAL_WORLD_SIZE": local})
    place = await hosting.place_at(asked, "localhost", 29500)
    assert place.is_where(MeetingPlace.at("10.0.0.1", 29500, "10.0.0.1")) is fits
    assert MeetingPlace.at("10.0.0.1", 29500, "10.0.0.1").is_where(place) is fits
    assert place.is_where(MeetingPlace.at(HOST, 29500, HOST))
    assert not place.is_where(MeetingPlace.at(HOST, 29501, HOST))


# Nodes of one job.


def config(**more: Any) -> LaunchConfig:
    return LaunchConfig(command=("x",), nproc=1, nnodes=2, master_addr=HOST, **more)


async def test_an_agent_that_is_led_to_another_job(port: int) -> None:
    """Whose operator has given it the same name, and the same secret."""
    access, relay = StoreAccess("job", SECRET.decode()), Relay()
    environ = {"AIODIST_JOB": "job", "AIODIST_SECRET": SECRET.decode()}
    head = asyncio.ensure_future(meet(config(master_port=port, node_rank=0), environ, print))
    async with await access.enter("localhost", port, 30.0, told=True):
        pass
    relay.target = (HOST, port)
    with pytest.raises(AuthenticationError, match=ANOTHER):
        await meet(config(master_port=relay.address[1], node_rank=1, meet_timeout=30.0), environ, print)
    await relay.aclose()
    assert not head.done()
    head.cancel()
    await asyncio.wait([head])


async def test_workers_of_another_launch_have_another_secret() -> None:
    """Also where both jobs have the same name and their agents the same secret; all nodes of one have one."""
    heads = [Head(config(master_port=1), Node(0, "h", 1), StoreAccess("job", SECRET.decode()), HOST, print)
             for _ in range(2)]  # fmt: skip
    rosters = [await head.alone() for head in heads]
    workers = [StoreAccess("job", SECRET.decode()).launched(one.launch).of_workers for one in rosters]
    assert len({one.secret for one in workers} | {SECRET.decode()}) == 3
    for mine, theirs in ((0, 0), (1, 1), (0, 1), (1, 0)):
        entering = workers[mine].enter(HOST, rosters[theirs].store_port, 10.0)
        if mine == theirs:
            await (await entering).aclose()
        else:
            with pytest.raises(AuthenticationError, match="another secret"):
                await entering
    for head in heads:
        await head.aclose()


async def test_an_agents_store_that_is_another_one() -> None:
    access, relay = StoreAccess("job", SECRET.decode()), Relay()
    one, other = await access.serve(HOST), await access.serve(HOST)
    relay.target = (other.host, other.port)
    with pytest.raises(AuthenticationError, match="another process has taken that address"):
        await access.enter(*relay.address, 30.0, instance=one.instance)
    for server in (one, other):
        await server.aclose()
    await relay.aclose()


# Ranks.


async def test_a_rank_that_is_led_to_the_same_rank_of_another_job() -> None:
    """The cards of a job name its own processes; those of another job, name and secret are others."""
    relay = Relay()
    made = [await SocketEndpoint.open(rank=r, job="job", secret=SECRET, mode="tcp") for r in (0, 1, 1)]
    mine, meant, another = made
    relay.target = (HOST, another.card["tcp"][1])
    mine.introduce({0: mine.card, 1: {**meant.card, "tcp": list(relay.address)}})
    for one in (meant, another):
        one.introduce({0: mine.card, 1: one.card})
    with pytest.raises(PeerLost, match="another process has taken that address"):
        await mine.link_control(1)
    for one in made:
        await one.aclose()
    await relay.aclose()


async def test_the_store_that_takes_the_place_of_one_whose_host_died(port: int) -> None:
    """It says as well where the job meets, so no newcomer of another job is taken in there."""
    rank_0 = await meets(0, port)
    member = await meets(1, port)
    assert rank_0.server is not None and isinstance(member.store, TcpStore)
    place = rank_0.server.place
    await rank_0.aclose(0)
    survivor: Any = SimpleNamespace(_meeting=member, _job_id="job", _secret=SECRET, _tls=None, _servers=[])
    assert await Member._host_store(survivor) == f"{HOST}:{port}"
    [server] = survivor._servers
    assert server.place == place != NOWHERE
    await member.aclose()
    await server.aclose()
