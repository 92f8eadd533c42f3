"""A member that makes a store keep things: all is charged to the limit, and what is charged is what it takes.

The attacks are those of a client that obeys the handshake and nothing else: it confirms no answer, comes and
goes under ever new names, asks for meetings and news that nobody wants, and for more than an answer may hold.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aiodist.base.errors import StoreFull, UsageError
from aiodist.net.wire.messages import Encoder
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.rendezvous import client as client_module
from aiodist.rendezvous import job_store as job_store_module
from aiodist.rendezvous.events import (
    MAX_MISSING,
    Connected,
    Disconnected,
    Effect,
    Failure,
    StoreReply,
    StoreRequest,
    Tick,
    Wake,
)
from aiodist.rendezvous.machine import StoreMachine, budget, store_machine
from aiodist.rendezvous.machine.gathers import MAX_WORLD
from aiodist.rendezvous.methods import METHODS
from aiodist.rendezvous.shapes import MAX_KEY
from tests.levels import COSTLY, few
from tests.support.store_client import connection_of

HOST = "127.0.0.1"
LIMIT = 2 << 20
WORLD = 1 << 12
_WIDE = "\U0001f600"  # four bytes a character
MALLORY, ALICE = b"m" * 16, b"a" * 16

Ask = Callable[[int], tuple[str, list[Any]]]
ATTACKS: dict[str, Ask] = {
    "answers of add": lambda n: ("add", ["n", 1]),
    "keys": lambda n: ("set", [f"k{n}", b"", None]),
    "deletes of nothing": lambda n: ("delete_key", ["absent"]),
    "tokens": lambda n: ("fence", []),
    "claims": lambda n: ("claim", ["k", bytes(20)]),
    "failed claims by lease": lambda n: ("compare_set", ["k", b"%08d" % n, b""]),
    "middling answers": lambda n: ("compare_set", ["k", b"%065d" % n, b""]),
    "large answers": lambda n: ("compare_set", ["k", b"%01000d" % n, b""]),
    "leases": lambda n: ("lease_grant", [1e9]),
    "ends of no lease": lambda n: ("lease_end", [7]),
    "keys with a ttl": lambda n: ("set", [f"k{n}", b"", 1e9]),
    "watches": lambda n: ("watch", [f"{n}"]),
    "watches of long prefixes": lambda n: ("watch", [f"{n}".ljust(MAX_KEY)]),
    "waits": lambda n: ("wait", [[f"{n}"], 1e9]),
    "waits for many": lambda n: ("wait", [[f"{n}.{k}" for k in range(500)], 1e9]),
    "keys of wide characters": lambda n: ("set", [f"{n}".ljust(MAX_KEY, _WIDE), b"", None]),
    "waits for wide characters": lambda n: ("wait", [[f"{n}".ljust(MAX_KEY, _WIDE)], 1e9]),
    "watches of wide characters": lambda n: ("watch", [f"{n}".ljust(MAX_KEY, _WIDE)]),
    "meetings with wide names": lambda n: ("gather", [f"{n}".ljust(MAX_KEY, _WIDE), 0, 2, b"", 1e9]),
    "meetings": lambda n: ("gather", [f"{n}", 0, 2, b"", 1e9]),
    "meetings with long names": lambda n: ("gather", [f"{n}".ljust(MAX_KEY), 0, 2, b"", 1e9]),
    "meetings alone": lambda n: ("gather", ["g", 0, 1, bytes(50), 1e9]),
}


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """→ bytes that were taken since, and are not free again."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def taken() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    try:
        yield taken
    finally:
        tracemalloc.stop()


def is_full(effects: list[Effect]) -> bool:
    return any(isinstance(effect, Failure) and effect.kind == "full" for effect in effects)


@pytest.mark.parametrize("attack", few(ATTACKS, ["keys"]))
def test_what_one_client_makes_a_store_keep_is_charged(attack: str) -> None:
    ask = ATTACKS[attack]
    with traced() as taken:
        machine = StoreMachine(LIMIT)
        machine.handle(Connected(MALLORY), 0.0)
        for n in range(1, 100_000):
            if is_full(machine.handle(StoreRequest(MALLORY, n, *ask(n)), 0.0)):
                break
        else:
            raise AssertionError(f"100,000 requests, {taken()} bytes, and the store is not full")
        assert machine.budget.size <= LIMIT
        assert taken() < 1.4 * LIMIT
        machine.handle(StoreRequest(MALLORY, n + 1, "goodbye", []), 0.0)
        while machine.due(2e9):
            machine.handle(Tick(), 2e9)
    kept = sum(4 * len(key) + len(entry.value) + 1000 for key, entry in machine.keys.entries.items())
    assert machine.budget.size <= kept, "it is gone, and so is what it asked; keys stay"


def test_every_method_that_leaves_an_answer_is_among_the_attacks_or_needs_a_key() -> None:
    """Whoever adds a method to the store finds this test."""
    tried = {ask(1)[0] for ask in ATTACKS.values()}
    same_as_set = {"multi_set", "append", "lease_set", "lease_claim"}
    keeps_nothing = {"multi_get", "check", "list_keys", "num_keys", "lease_renew", "ping"}
    keeps_nothing |= {"cancel", "resume", "goodbye"}
    assert METHODS.keys() - tried - same_as_set - keeps_nothing == set()


@pytest.mark.slow(COSTLY)
def test_clients_that_come_and_go_are_charged_once_they_have_changed_something() -> None:
    with traced() as taken:
        machine = StoreMachine(LIMIT)
        full = False
        for n in range(1, 20_000):
            client = n.to_bytes(16, "big")
            machine.handle(Connected(client), 0.0)
            full = full or is_full(machine.handle(StoreRequest(client, 1, "add", ["n", 1]), 0.0))
            machine.handle(Disconnected(client), 0.0)
        assert full
        assert machine.budget.size <= LIMIT
        assert taken() < 1.4 * LIMIT


def test_clients_that_only_look_leave_nothing() -> None:
    machine = StoreMachine(LIMIT)
    for n in range(1000):
        client = n.to_bytes(16, "big")
        machine.handle(Connected(client), 0.0)
        machine.handle(StoreRequest(client, 1, "watch", ["k"]), 0.0)
        machine.handle(StoreRequest(client, 2, "wait", [["k"], 1.0]), 0.0)
        machine.handle(Disconnected(client), 0.0)
    assert (len(machine.sessions.by_client), machine.budget.size) == (0, 0)
    machine.handle(Connected(ALICE), 0.0)
    machine.handle(Disconnected(ALICE), 0.0)
    machine.handle(Connected(ALICE), 0.0)
    [resumed] = [
        effect
        for effect in machine.handle(StoreRequest(ALICE, 1, "resume", [[], 0]), 0.0)
        if isinstance(effect, StoreReply | Failure)
    ]
    assert isinstance(resumed, StoreReply), "who had asked for nothing may come back"


@pytest.mark.slow(COSTLY)
def test_meetings_that_fail_all_at_once_take_what_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure of each call names those who are missing, 36 bytes each."""
    with traced() as taken:
        machine = StoreMachine(LIMIT // 8)
        machine.handle(Connected(MALLORY), 0.0)
        calls = 0
        while not is_full(machine.handle(StoreRequest(MALLORY, calls + 1, *_lonely(calls)), 0.0)):
            calls += 1
        assert calls > 50  # so that all their failures would take ten times the limit
        failures = [effect for effect in machine.handle(Tick(), 10.0) if isinstance(effect, Failure)]
        assert len(failures) == calls
        assert failures[0].missing == tuple(range(1, MAX_MISSING + 1))
        assert failures[0].message.startswith(
            f"ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and {WORLD - 11} more did"
        )
        again = machine.handle(StoreRequest(MALLORY, failures[0].id, *_lonely(0)), 10.0)
        assert [(e.message, e.missing) for e in again if isinstance(e, Failure)] == [
            (failures[0].message, failures[0].missing)
        ]
        failures.clear()
        again.clear()
        assert machine.budget.size <= LIMIT // 8
        assert taken() < 1.4 * LIMIT // 8


def _lonely(number: int) -> tuple[str, list[Any]]:
    return "gather", [f"g{number}", 0, WORLD, b"", 1.0]


def test_a_failure_takes_little_however_large_the_world_is_said_to_be() -> None:
    """Named were all 65,536, to each of those who wait: 2.5 MB and 50 ms for one tiny request."""
    machine = StoreMachine(LIMIT)
    machine.handle(Connected(MALLORY), 0.0)
    for n in range(10):
        machine.handle(StoreRequest(MALLORY, n + 1, "gather", [f"g{n}", n, MAX_WORLD, b"", 1.0]), 0.0)
    with traced() as taken:
        tracemalloc.reset_peak()
        failures = [effect for effect in machine.handle(Tick(), 10.0) if isinstance(effect, Failure)]
        assert len(failures) == 10
        assert taken() < 200_000
        assert tracemalloc.get_traced_memory()[1] < 400_000, "at no time"


def test_those_who_wait_for_one_share_the_list_of_who_is_missing() -> None:
    """Each looked for itself: 65,535 times 65,536 ranks."""
    machine = StoreMachine()
    machine.handle(Connected(ALICE), 0.0)
    for rank in range(8):
        machine.handle(StoreRequest(ALICE, rank + 1, "gather", ["g", rank, 1000, b"", 1.0]), 0.0)
    first, *others = [e for e in machine.handle(Tick(), 10.0) if isinstance(e, Failure)]
    assert first.missing == tuple(range(8, 8 + MAX_MISSING))
    assert len(others) == 7
    assert all(failure.missing is first.missing for failure in others)


def test_what_ends_at_one_time_ends_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of calls with one timeout keep nobody from being served between their ends."""
    monkeypatch.setattr(store_machine, "_TURN", 4)
    machine = StoreMachine()
    machine.handle(Connected(MALLORY), 0.0)
    for n in range(10):
        machine.handle(StoreRequest(MALLORY, n + 1, *_lonely(n)), 0.0)
    turns = []
    while machine.due(10.0):
        effects = machine.handle(Tick(), 10.0)
        turns.append([effect.id for effect in effects if isinstance(effect, Failure)])
        assert not machine.due(10.0) or any(isinstance(e, Wake) and e.at <= 10.0 for e in effects)
    assert turns == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


@pytest.mark.slow(COSTLY)
def test_ranks_that_came_and_went_are_charged() -> None:
    """One who stays keeps the round, and with it the names of all who gave up."""
    machine = StoreMachine(LIMIT)
    machine.handle(Connected(MALLORY), 0.0)
    machine.handle(StoreRequest(MALLORY, 1, "gather", ["g", 0, MAX_WORLD, b"", 1e9]), 0.0)
    machine.handle(StoreRequest(MALLORY, 2, "ping", []), 0.0)
    before = machine.budget.size
    with traced() as taken:
        for rank in range(1, 501):
            call = rank + 2
            machine.handle(
                StoreRequest(MALLORY, call, "gather", ["g", rank, MAX_WORLD, b"", 0.0], [call - 1]), 0.0
            )
            while machine.due(float(rank)):
                machine.handle(Tick(), float(rank))
        machine.handle(StoreRequest(MALLORY, 600, "cancel", [call]), 0.0)
        assert taken() < 1.4 * (machine.budget.size - before)
    machine.handle(StoreRequest(MALLORY, 601, "gather", ["g", 1, MAX_WORLD, b"", 1e9], []), 0.0)
    for call in (1, 601):
        machine.handle(StoreRequest(MALLORY, call + 1000, "cancel", [call]), 0.0)
    assert machine.budget.size == budget.SESSION_COST


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("set", ["k" * 5000, b"", None]),
        ("add", ["k" * 5000, 1]),
        ("multi_set", [["a", "k" * 5000], [b"", b""]]),
        ("watch", ["k" * 5000]),
        ("gather", ["k" * 5000, 0, 2, b"", 1.0]),
    ],
)
def test_names_that_no_client_of_ours_would_send(method: str, args: list[Any]) -> None:
    machine = StoreMachine(LIMIT)
    machine.handle(Connected(MALLORY), 0.0)
    before = machine.budget.size
    effects = machine.handle(StoreRequest(MALLORY, 1, method, args), 0.0)
    assert any(
        isinstance(effect, Failure) and "at most 4096 characters" in effect.message for effect in effects
    )
    assert machine.budget.size == before


def test_a_full_store_lets_everybody_make_room() -> None:
    machine = StoreMachine(LIMIT)
    machine.handle(Connected(MALLORY), 0.0)
    n = 1
    while not is_full(machine.handle(StoreRequest(MALLORY, n, "set", [f"k{n}", b"", None], [n - 1]), 0.0)):
        n += 1
    machine.handle(Connected(ALICE), 0.0)  # whoever comes is let in, to delete
    for number in range(1, 11):
        [gone] = machine.handle(StoreRequest(ALICE, number, "delete_key", [f"k{number}"], [number - 1]), 0.0)
        assert gone == StoreReply(ALICE, number, True)
    assert not is_full(machine.handle(StoreRequest(ALICE, 11, "set", ["k", b"", None], [10]), 0.0))


# Over a connection.


@pytest.fixture
async def server() -> AsyncIterator[StoreServer]:
    async with await StoreServer.start(HOST, 0, "job", b"secret", limit=LIMIT) as server:
        yield server


async def connect(server: StoreServer) -> TcpStore:
    return await TcpStore.connect(HOST, server.port, "job", b"secret", 60)


@pytest.mark.slow(COSTLY)
async def test_who_confirms_nothing_is_refused_and_the_others_go_on(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Encoder):
        def request(self, id: int, settled: list[int], method: str, args: list[Any]) -> bytes:
            return super().request(id, [], method, args)

    with monkeypatch.context() as patch:
        patch.setattr(client_module, "Encoder", Silent)
        mallory = await connect(server)
    async with mallory, await connect(server) as alice:
        with pytest.raises(StoreFull):
            for _ in range(LIMIT // budget.ANSWER_COST + 1):
                await mallory.add("n", 1)
        with pytest.raises(StoreFull):
            await alice.set("k", "v")
        await mallory.aclose()
        await alice.set("k", "v")


async def test_a_small_question_gets_no_answer_larger_than_a_message(server: StoreServer) -> None:
    """Of one value a million times nothing is made, not even to be thrown away."""
    async with await connect(server) as store:
        await store.set("k", bytes(1 << 20))
        with traced() as taken, pytest.raises(UsageError, match="a message of over 104857600 bytes"):
            await store.multi_get(["k"] * 100)
            assert taken() < 10 << 20
        with traced():
            with pytest.raises(UsageError, match="a message of over"):
                await store.multi_get(["k"] * 100)
            assert tracemalloc.get_traced_memory()[1] < 10 << 20, "at no time"


@pytest.mark.parametrize("durable", few([False, True], [False]))
async def test_news_to_a_crowd_of_watches_wait_for_nobody_without_bound(
    durable: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of 1 MiB under 200 watches of one client: 200 MiB at once, unless somebody counts."""
    monkeypatch.setattr(job_store_module, "_MANY", 1 << 20)
    monkeypatch.setattr(job_store_module, "MAX_NEWS", 8 << 20)
    monkeypatch.setattr("aiodist.rendezvous.connection.MAX_UNREAD", 8 << 20)
    data = tmp_path / "d" if durable else None
    async with (
        await StoreServer.start(HOST, 0, "job", b"secret", data=data) as server,
        await connect(server) as mallory,
        await connect(server) as alice,
    ):
        watches = [mallory.watch("k") for _ in range(200)]
        assert await mallory.check([])
        connection = connection_of(mallory)
        connection.pause()
        value = bytes(1 << 20)
        with traced():
            await alice.set("k", value)
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        assert await alice.get("k") == value
        assert len(watches) == 200
        connection.abort()
        await mallory.aclose()  # in this very turn: it does not come back for the news
