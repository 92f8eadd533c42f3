"""Members that write the names of the launcher's keys: they reach no store of it, and it would do no harm."""

from __future__ import annotations

import asyncio
import signal

import pytest

from aiodist.base.errors import AuthenticationError, UsageError
from aiodist.launch.nodes.head import _signal
from aiodist.launch.nodes.local_node import LocalNode
from aiodist.launch.nodes.messages import number_in
from aiodist.launch.nodes.nodes import Listener, Nodes
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.rendezvous import HashStore, TcpStore, WatchEvent
from tests.waiting import until_so

HOST = "127.0.0.1"
DOORS = StoreAccess("job", "the secret of the operator")
WORKERS = DOORS.of_workers.secret.encode()

STRANGE = ["x", "", "-1", "1.5", "٣", "9" * 4000, "1/2", " 1", "0x1", "1\n", "\x1b[2J"]


async def test_what_a_worker_knows_opens_no_store_of_the_agents() -> None:
    """The audit's attack: with the job's secret a member entered it, and set agents/alive/x."""
    async with await DOORS.serve(HOST) as agents, await DOORS.of_workers.serve(HOST) as workers:
        with pytest.raises(AuthenticationError):
            await TcpStore.connect(HOST, agents.port, "job", WORKERS, 60)
        async with await TcpStore.connect(HOST, workers.port, "job", WORKERS, 60) as store:
            await store.set("agents/alive/x", "")
        async with await DOORS.enter(HOST, agents.port, 60) as store:
            assert await store.list_keys() == []
        async with await DOORS.of_workers.enter(HOST, workers.port, 60) as store:
            assert await store.list_keys() == ["agents/alive/x"]


def test_a_workers_secret_is_its_jobs_and_says_nothing_of_the_operators() -> None:
    local = LocalNode(0, HOST, HOST, DOORS)
    secret = local.place(Roster.of([Member(0, "h", 1)])).secret
    assert secret.encode() == WORKERS
    assert len(bytes.fromhex(secret)) == 32
    others = {
        StoreAccess(job, operators).of_workers.secret
        for job, operators in (("job", "another"), ("another", DOORS.secret), ("", DOORS.secret))
    }
    assert len(others | {secret, DOORS.secret}) == 5
    assert StoreAccess("job", "").of_workers.secret == "", "without one nothing is hidden, nor claimed to be"
    assert DOORS.secret not in repr(DOORS.of_workers) and secret not in repr(DOORS.of_workers)


@pytest.mark.parametrize("name", STRANGE)
def test_no_name_is_taken_for_a_node(name: str) -> None:
    assert number_in(f"agents/alive/{name}", "agents/alive/") is None


def test_signs_of_life_are_read() -> None:
    assert [number_in(f"agents/alive/{id}", "agents/alive/") for id in (0, 7, 10**17)] == [0, 7, 10**17]
    assert number_in("agents/0/alive/1", "agents/alive/") is None
    assert number_in("agents/stop", "agents/alive/") is None


async def test_a_nodes_heartbeat_goes_on_whatever_is_beside_it() -> None:
    """Where there is no secret members do get in."""
    store = HashStore()
    for name in STRANGE:
        await store.set(f"agents/alive/{name}", b"")
    roster = Roster.of([Member(n, f"h{n}", 1) for n in range(2)], store_port=9, master_port=7)
    agents = [LocalNode(n, HOST, HOST, DOORS) for n in range(2)]
    made = [Nodes(local, roster, store, None, lease=30.0, beat=0.01) for local in agents]
    heard: list[object] = []
    for n in range(2):
        await Nodes.expect(store, n, 30.0)
    for member in made:
        await member.watch(Listener(heard.append, heard.append))
    async with store.watch("agents/alive/1") as watch:
        beats = 0
        while beats < 5:
            beats += await anext(watch) == WatchEvent("agents/alive/1", b"")
    await until_so(lambda: [member.alive for member in made] == [{0, 1}] * 2)
    assert heard == []
    assert all(member.lost == () for member in made)
    await asyncio.gather(*(member.aclose() for member in made))


@pytest.mark.parametrize(
    "said", [b"", b"x", b"1e3", b"true", b"0", b"-9", b"1000", b"9" * 5000, b"[[[", b"\xff"]
)
def test_a_signal_that_is_none_ends_the_job_as_one_that_is(said: bytes) -> None:
    assert _signal(said) == signal.SIGTERM


def test_a_signal_is_what_it_is() -> None:
    assert _signal(b"2") == signal.SIGINT


async def test_keys_that_fill_the_agents_store_end_the_attempt_and_do_not_freeze_it() -> None:
    """A heartbeat that could not be answered ended without a word, and the node waited for ever."""

    class Full(HashStore):
        async def list_keys(self, prefix: str = "") -> list[str]:
            raise UsageError("the answer is a message of over 9000000 bytes")

    roster = Roster.of([Member(n, f"h{n}", 1) for n in range(2)])
    node = Nodes(LocalNode(1, HOST, HOST, DOORS), roster, Full(), None, lease=30.0, beat=0.01)
    heard: asyncio.Queue[str] = asyncio.Queue()
    await node.watch(Listener(heard.put_nowait, lambda lost: None))
    assert await heard.get() == "failure"
    assert node.lost == (0,)
    await node.aclose()
