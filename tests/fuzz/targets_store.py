"""Fuzzed: a store's server with its machine, and a store's client, each behind the other's handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from aiodist.base.errors import AiodistError, WireError
from aiodist.net.wire.handshake import Identity, Purpose
from aiodist.net.wire.messages import (
    Encoder,
    FrameParser,
    Status,
    encode_response,
    pack,
    split_request,
    split_response,
)
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.failures import closed_error
from aiodist.rendezvous.job_store import JobStore
from aiodist.rendezvous.machine import StoreMachine
from aiodist.rendezvous.store_card import StoreCard
from aiodist.rendezvous.watch import Watch, WatchEvent
from tests.fuzz.engine import Judgement
from tests.fuzz.hand_loop import HandLoop
from tests.fuzz.mutate import framed, join, packed, raw, split
from tests.fuzz.target import Run, Target
from tests.fuzz.targets_wire import JOB, SECRET

STORE = Identity(JOB, Purpose.store, 0, StoreCard(b"i" * 16).encode())


@contextmanager
def running(loop: HandLoop) -> Iterator[None]:
    """Have asyncio take the loop that is turned by hand for the running one."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class _Handshake:
    def __init__(self, peer: Identity) -> None:
        self.peer = peer


class _Poller:
    def only(self, _task: object) -> bool:
        return False

    def overdue(self) -> bool:
        return True


class Connection:
    """What a server or a client needs of one, without a socket."""

    def __init__(self, peer: Identity) -> None:
        self.handshake = _Handshake(peer)
        self.poller = _Poller()
        self.client, self.serves, self.local_host = b"", False, "127.0.0.1"
        self.peer_address = "a fuzzer"
        self.unread, self.is_over = 0, False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written.append(data)

    def read(self) -> bool:
        """Nothing has arrived."""
        return False

    def why_not(self, vouched: bool) -> str:
        """Nothing is known against it."""
        return ""

    def pause(self) -> None:
        """Nothing."""

    def resume(self) -> None:
        """Nothing."""

    def close(self, error: Exception | None = None) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Nothing."""


def _nothing(*_: object) -> None:
    pass


# ── the server ───────────────────────────────────────────────────────────────────────────────────────

CLIENTS = 3
REQUEST, AWAY, LATER = range(3)


class Serving:
    """A server with three clients, that takes a script: parts with a byte in front that says what happens.

    Its low two bits: who; the next three: 0 to 5 a request, 6 the client goes and comes back, 7 time passes.
    """

    def __init__(self) -> None:
        self.loop = HandLoop()
        with running(self.loop):
            self.server = JobStore(JOB, StoreMachine(64 << 20), _nothing, _nothing)
            self.server.begin(None)
            self.connections = [self._connect(number) for number in range(CLIENTS)]
        self.parsers = [FrameParser() for _ in range(CLIENTS)]
        self.answers: list[tuple[int, int, Any]] = []
        self.refused = 0

    def _connect(self, number: int) -> Connection:
        connection = Connection(STORE)
        connection.client = bytes([number]) * 16
        self.server.connected(connection)  # type: ignore[arg-type]
        return connection

    def take(self, part: bytes) -> None:
        """One event."""
        head = part[0] if part else 0
        who, what = head % CLIENTS, head >> 2 & 7
        with running(self.loop):
            if what < 6:
                self._request(who, part[1:])
            elif what == 6:
                self.server.lost(self.connections[who])  # type: ignore[arg-type]
                self.connections[who] = self._connect(who)
                self.parsers[who] = FrameParser()
            else:
                self.loop.advance((0.1, 3.0, 70.0, 1000.0)[head >> 5 & 3])
        self.read()

    def _request(self, who: int, payload: bytes) -> None:
        connection: Any = self.connections[who]
        try:
            self.server.frames(connection, [payload])
        except AiodistError as error:
            self.refused += 1
            try:
                split_request(payload)
            except WireError:
                pass
            else:
                raise Judgement(f"a request ends the connection: {error}") from error
            self.server.lost(connection, error)
            self.connections[who] = self._connect(who)
            self.parsers[who] = FrameParser()

    def read(self) -> None:
        """Every answer is one, and fits into a frame."""
        for who, connection in enumerate(self.connections):
            written, connection.written = connection.written, []
            for payload in self.parsers[who].feed(b"".join(written)):
                self.answers.append(split_response(payload))

    def works(self) -> None:
        """What comes later is served."""
        key = "is the store alive?"
        encode = Encoder().request
        with running(self.loop):
            late = self._connect(99)
            for id, (method, args) in enumerate(
                [("set", [key, b"yes", None]), ("multi_get", [[key], 1.0])], 1
            ):
                self.server.frames(late, [encode(id, [], method, args)[4:]])  # type: ignore[arg-type]
        found = [split_response(payload) for payload in FrameParser().feed(b"".join(late.written))]
        if found != [(1, 0, None), (2, 0, [b"yes"])]:
            raise Judgement(f"the store does not answer any more: {found}")


def scripts() -> list[bytes]:
    """Requests of several clients in a row, with breaks and time that passes."""
    encode = Encoder().request
    numbers = iter(range(1, 10_000))

    def ask(who: int, method: str, *args: Any, id: int | None = None) -> bytes:
        return bytes([who]) + encode(next(numbers) if id is None else id, [], method, list(args))[4:]

    def away(who: int) -> bytes:
        return bytes([6 << 2 | who])

    def later(step: int) -> bytes:
        return bytes([step << 5 | 7 << 2])

    keys = [
        ask(0, "set", "a", b"1", None),
        ask(0, "set", "lease", b"x", 5.0),
        ask(1, "add", "a", 41),
        ask(1, "append", "a", b"7"),
        ask(2, "compare_set", "a", b"427", b"new"),
        ask(2, "multi_set", ["b", "c"], [b"2", b"3"]),
        ask(0, "multi_get", ["b", "c"], 1.0),
        ask(0, "check", ["a", "z"]),
        ask(0, "list_keys", ""),
        ask(0, "num_keys", "a"),
        ask(0, "delete_key", "a"),
    ]
    waiting = [
        ask(0, "wait", ["later", "latest"], 10.0),
        ask(1, "multi_get", ["later"], 0.05),
        ask(2, "watch", "la"),
        later(0),
        ask(1, "set", "later", b"!", None),
        ask(1, "set", "latest", b"!", None),
        later(1),
    ]
    meeting = [ask(who, "gather", "here", who, 3, bytes([who]) * 9, 10.0) for who in range(3)]
    alone = [ask(0, "gather", "here", 0, 3, b"card", 0.05), later(0)]
    back = [
        ask(0, "wait", ["never"], 300.0, id=9001),
        ask(0, "add", "n", 1, id=9002),
        away(0),
        ask(0, "resume", [9001, 9002], 0),
        ask(0, "wait", ["never"], 300.0, id=9001),
        ask(0, "add", "n", 1, id=9002),
        ask(0, "cancel", 9001),
        ask(0, "ping"),
        ask(0, "goodbye"),
    ]
    leases = [
        ask(0, "lease_grant", 5.0),
        ask(0, "lease_set", 1, "held", b"x"),
        ask(0, "lease_renew", 1),
        ask(1, "lease_renew", 1),
        ask(0, "fence"),
        away(1),
        later(1),
        ask(0, "lease_end", 1),
    ]
    rows = [keys, waiting, meeting, alone, back, leases, [*meeting[:2], later(2)], [away(0), later(3), *keys]]
    return [join(row) for row in rows]


@contextmanager
def open_store() -> Iterator[Run]:
    def run(script: bytes) -> str:
        serving = Serving()
        for part in split(script):
            serving.take(part)
        serving.works()
        with running(serving.loop):
            serving.loop.advance(10_000.0)
        serving.read()
        return "refused" if serving.refused else ""

    yield run


# ── the client ───────────────────────────────────────────────────────────────────────────────────────


class Asking:
    """A client that is connected, without a socket: what a connection tells the client is told by hand.

    Attributes:
        store: what is asked.
    """

    def __init__(self) -> None:
        self.store = TcpStore("127.0.0.1", 1, STORE, SECRET, 300.0, None)
        connection: Any = Connection(STORE)
        self._connection = connection
        self.store._ready(self._connection)

    def hear(self, data: bytes) -> AiodistError | None:
        """What comes from the store → what ended the connection."""
        try:
            if payloads := FrameParser().feed(data):
                self.store._frames(self._connection, payloads)
        except AiodistError as error:
            self.store._connection_lost(self._connection, error)
            return error
        return None

    def end(self) -> None:
        """The store is over."""
        self.store._finish(closed_error())


def calls(store: TcpStore) -> list[tuple[Coroutine[Any, Any, Any], Any]]:
    """Every call, each with what it must give."""

    def of(kind: type) -> Any:
        return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)

    def a(kind: type) -> Any:
        return lambda value: type(value) is kind

    return [
        (store.set("k", b"v"), a(type(None))),
        (store.get("k", 1.0), a(bytes)),
        (store.multi_get(["k", "l"], 1.0), of(bytes)),
        (store.multi_set(["k"], [b"v"]), a(type(None))),
        (store.wait(["k"], 1.0), a(type(None))),
        (store.check(["k"]), a(bool)),
        (store.add("n", 1), a(int)),
        (store.append("k", b"v"), a(type(None))),
        (store.compare_set("k", b"v", b"w"), a(bytes)),
        (store.delete_key("k"), a(bool)),
        (store.list_keys(), of(str)),
        (store.num_keys(), a(int)),
        (store.gather("g", 2, 0, b"mine", 1.0), of(bytes)),
    ]


WATCH = 14


def answers() -> list[bytes]:
    """Good answers to those calls, and bad news."""
    good = [
        *(None, [b"v"], [b"v", b"w"], None, None, True, 5, None, b"w", False, ["k"], 1, [b"mine", b"theirs"])
    ]
    replies = [encode_response(id, Status.reply, pack(value)) for id, value in enumerate(good, 1)]
    failures = [
        encode_response(id, Status.failure, pack([kind, "words", "hint", [0, 3]]))
        for id, kind in ((2, "timeout"), (13, "conflict"), (7, "usage"), (3, "full"))
    ]
    news = [
        encode_response(WATCH, Status.push, pack([["k", b"v", 1], ["l", b"w", 2]])),
        encode_response(WATCH, Status.push, pack([["k", None, 3]])),
        encode_response(WATCH, Status.push, pack([["m", b"", 4]])),
    ]
    closing = encode_response(0, Status.closing, pack("its host closed it"))
    rows = [replies, replies[::-1], [*failures, *replies], [*news, *replies[:3]], [*replies[:5], closing]]
    return [*(b"".join(row) for row in rows), *replies, *failures, *news]


@contextmanager
def open_client() -> Iterator[Run]:
    def run(data: bytes) -> str:
        loop = HandLoop()
        with running(loop):
            asking = Asking()
            asked = calls(asking.store)
            for coroutine, _ in asked:
                coroutine.send(None)
            watch = asking.store.watch("k")
            lost = asking.hear(data)
            asking.end()
            good = sum(_ends(coroutine, fits) for coroutine, fits in asked)
            for event in _told(watch):
                if type(event) is not WatchEvent or type(event.key) is not str:
                    raise Judgement(f"the watch tells {event!r}")
                if event.value is not None and type(event.value) is not bytes:
                    raise Judgement(f"the watch tells {event!r}")
            return type(lost).__name__ if lost else "" if good else "no answer"

    yield run


def _told(watch: Watch) -> Iterator[WatchEvent]:
    """What a watch tells that has ended."""
    while True:
        try:
            watch.__anext__().send(None)
        except StopIteration as told:
            yield told.value
        except AiodistError:
            return


def _ends(coroutine: Coroutine[Any, Any, Any], fits: Any) -> bool:
    """Whether a call was answered; it must have ended either way."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        if not fits(end.value):
            raise Judgement(f"{coroutine} gives {end.value!r:.100}") from None
        return True
    except AiodistError as error:
        if not isinstance(str(error), str) or not isinstance(error.hint, str):
            raise Judgement(f"an error without words: {error!r}") from None
        return False
    coroutine.close()
    raise Judgement(f"{coroutine} waits on")


TARGETS = [
    Target(
        "store",
        "requests of three clients to one store, in any order",
        scripts,
        open_store,
        (),
        (framed(packed, 1), framed(packed, 1), framed(raw, 1), raw),
        0.4,
    ),
    Target(
        "client",
        "answers of a store to a client that has asked everything",
        answers,
        open_client,
        (),
        (framed(packed), framed(packed), raw),
        0.4,
    ),
]
