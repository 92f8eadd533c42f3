"""An attacker on the path of plain TCP relays the handshake, and then rewrites, inserts, leaves out, repeats.

Nothing of that is believed where bytes mean something: requests and answers of a store, control messages,
headers, small messages, and objects of any size. What it can do is to end connections; nobody is given up for
that. The bytes of larger tensors are not authenticated without TLS: a test says so.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.base import Operation
from aiodist.backends.host.level import carried
from aiodist.base.errors import RendezvousError, Tampered, UsageError
from aiodist.base.operations import OBJECT_TAGS
from aiodist.base.types import AS, NO_ROOT, Call, Kind
from aiodist.group import ProcessGroup
from aiodist.group.control.messages import Say
from aiodist.net.wire import seal
from aiodist.net.wire.frame import Type, pack
from aiodist.net.wire.messages import Encoder
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.testing import run_cluster
from aiodist.transport import SocketEndpoint
from tests.helpers import core_of
from tests.security.relay import HOST, Relay
from tests.support.channel_pair import turn_until

SECRET = b"a secret that nobody will ever guess"
ALTERED = "the data were altered on the network path"


class Once:
    """A rewriting that happens once, and not before `armed`."""

    def __init__(self, rewrite: Callable[[bytes], bytes], armed: bool = False) -> None:
        self._rewrite = rewrite
        self.armed = armed
        self.done = 0

    def __call__(self, data: bytes) -> bytes:
        if not self.armed or self.done:
            return data
        changed = self._rewrite(data)
        self.done += changed != data
        return changed


def records(data: bytes) -> list[bytes]:
    """The records in a piece that begins and ends with one."""
    found = []
    while data:
        (size,) = struct.unpack_from("<I", data)
        end = 4 + seal.TAG + (0 if size & seal._RAW else size)
        found.append(data[:end])
        data = data[end:]
    return found


# ── a store ──────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def attacked_store(relay: Relay) -> AsyncIterator[tuple[StoreServer, TcpStore, TcpStore]]:
    """A server, a client that reaches it by way of the relay, and one that does not."""
    try:
        async with await StoreServer.start(HOST, 0, "job", SECRET) as server:
            relay.target = (HOST, server.port)
            async with (
                await TcpStore.connect(HOST, relay.address[1], "job", SECRET, 20) as client,
                await TcpStore.connect(HOST, server.port, "job", SECRET, 20) as other,
            ):
                yield server, client, other
    finally:
        await relay.aclose()


INJECTED = Encoder().request(1 << 40, [], "set", ["injected", b"evil", None])


def twice(data: bytes) -> bytes:
    return data + data


def swapped(data: bytes) -> bytes:
    parts = records(data)
    return b"".join(parts[::-1]) if len(parts) > 1 else data


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


REWRITES: dict[str, Callable[[bytes], bytes]] = {
    "a value is replaced": lambda data: data.replace(b"honest", b"forged"),
    "a bit of the tag": flipped,
    "a request is put in before": lambda data: INJECTED + data,
    "a request is put in behind": lambda data: data + INJECTED,
    "a sealed request of another key": lambda data: seal.Sealer(bytes(32)).seal(INJECTED) + data,
    "a request is repeated": twice,
    "bytes without a tag": lambda data: (
        struct.pack("<I", len(INJECTED) | seal._RAW) + bytes(16) + INJECTED + data
    ),
    "the tag is left out": lambda data: data[: -seal.TAG] + INJECTED,
    "a size is changed": lambda data: struct.pack("<I", len(data) - 21) + data[4:-1],
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
async def test_requests_to_a_store(
    rewrite: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """The server takes none of it. The client asks again, and is served."""
    caplog.set_level(logging.WARNING, "aiodist")
    attack = Once(rewrite)
    relay = Relay(forth=attack)
    async with attacked_store(relay) as (_server, client, other):
        await client.set("before", b"1")
        attack.armed = True
        await client.set("key", b"honest value")
        await client.add("counter", 5)
        assert await other.get("key") == b"honest value"
        assert await other.add("counter", 0) == 5  # once, though it was sent more than once
        assert await other.check(["injected"]) is False
        assert attack.done == 1 and relay.connections == 2
    assert any(ALTERED in record.getMessage() for record in caplog.records)


async def test_a_request_that_is_left_out() -> None:
    """What comes behind it is not taken either."""
    attack = Once(lambda data: b"")
    relay = Relay(forth=attack)
    async with attacked_store(relay) as (_server, client, other):
        attack.armed = True
        lost = asyncio.ensure_future(client.set("key", b"honest value"))
        await turn_until(lambda: bool(attack.done))
        await client.set("behind", b"it")
        await lost
        assert await other.get("key") == b"honest value"
        assert relay.connections == 2


async def test_answers_of_a_store(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiodist")
    attack = Once(lambda data: data.replace(b"honest", b"forged"))
    relay = Relay(back=attack)
    async with attacked_store(relay) as (_server, client, other):
        await other.set("key", b"honest value")
        attack.armed = True
        assert await client.get("key") == b"honest value"
        assert attack.done == 1 and relay.connections == 2
    assert any(ALTERED in record.getMessage() for record in caplog.records)


async def test_requests_of_another_connection() -> None:
    """What was sealed for one is worth nothing in the next, nor in the other direction."""
    relay = Relay()
    async with attacked_store(relay) as (_server, client, other):
        await client.add("counter", 1)
        recorded = bytes(relay.seen[0])
        for attack in (Once(lambda data: recorded + data, True), Once(lambda data: data + recorded, True)):
            relay.forth = attack
            await client.add("counter", 1)
            await client.add("counter", 1)
            assert attack.done == 1
        relay.back = attack = Once(lambda data: recorded, True)
        await client.add("counter", 1)
        assert attack.done == 1
        assert await other.add("counter", 0) == 6


@pytest.mark.slow("attempts with pauses between them")
async def test_who_never_stops_altering_keeps_the_client_out() -> None:
    """It is told who did it, after a few attempts; not let in, and not kept waiting."""
    relay = Relay()
    async with attacked_store(relay) as (_server, client, other):
        await other.set("key", b"value")
        relay.back = flipped
        with pytest.raises(RendezvousError, match=f"lost the connection to the store at .*: {ALTERED}"):
            await client.get("key")
        assert relay.connections < 10
        await other.set("still", b"served")


async def test_an_end_in_the_middle_is_no_goodbye() -> None:
    """A connection that is cut is replaced; no request that came before it was taken for the last."""
    relay = Relay()
    async with attacked_store(relay) as (server, client, other):
        await client.add("counter", 1)
        relay.forth = attack = Once(lambda data: data[:10], True)
        adding = asyncio.ensure_future(client.add("counter", 1))
        await turn_until(lambda: bool(attack.done))
        await client.add("counter", 1)
        await adding
        assert await other.add("counter", 0) == 3
        assert server.clients == 2


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────


class Attacked:
    """Ranks in this loop over TCP, each of which the others reach by way of a relay."""

    def __init__(self, size: int, secret: bytes = SECRET) -> None:
        self.relays = [Relay() for _ in range(size)]
        self._secret = secret

    def endpoint(self, rank: int) -> SocketEndpoint:
        """Of a rank; its card shows the relay."""
        made = SocketEndpoint(asyncio.get_running_loop(), rank, "job", self._secret, mode="tcp")
        self.relays[rank].target = (HOST, made.card["tcp"][1])
        made.card["tcp"] = list(self.relays[rank].address)
        return made

    def strike(self, rank: int, forth: Callable[[bytes], bytes]) -> Once:
        """Rewrite once what others send to `rank`."""
        self.relays[rank].forth = attack = Once(forth, True)
        return attack

    async def run(self, main: Callable[[ProcessGroup], Awaitable[Any]], **more: Any) -> list[Any]:
        try:
            return await run_cluster(len(self.relays), main, endpoint=self.endpoint, **more)
        finally:
            for relay in self.relays:
                await relay.aclose()


class Parcel:
    """Something that only pickle can carry."""

    def __init__(self, content: bytes) -> None:
        self.content = content


fired: list[str] = []


def fire(what: str) -> None:
    """Note that it has happened."""
    fired.append(what)


class Exploit:
    """What an attacker wants to be unpickled."""

    def __reduce__(self) -> Any:
        return fire, ("code of an attacker",)


def exploited(data: bytes) -> bytes:
    """A piece with an exploit in place of the first pickle in it, of the same length."""
    at = data.find(b"\x80\x05")
    evil = pickle.dumps(Exploit(), protocol=2)
    if at < 0 or b"Parcel" not in data[at : at + 200]:
        return data
    return data[:at] + evil + data[at + len(evil) :]


@pytest.mark.parametrize("nbytes", [100, 8000, 100_000, 3_000_000], ids=["small", "eager", "bulk", "huge"])
@pytest.mark.parametrize("how", ["broadcast", "gather", "message"])
async def test_pickles(nbytes: int, how: str) -> None:
    """The audit's attack: objects with allow_pickle=True, rewritten behind the handshake."""
    fired.clear()
    attacked = Attacked(2)
    attack = attacked.strike(1, exploited)

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        mine = Parcel(b"p" * nbytes)
        match how:
            case "broadcast":
                await pg.broadcast_object(mine, allow_pickle=True)
            case "gather":
                await pg.gather_object(mine if pg.rank == 0 else None, dst=1, allow_pickle=True)
            case _ if pg.rank == 0:
                await pg.send_object(mine, 1, allow_pickle=True)
            case _:
                await pg.recv_object(0, allow_pickle=True)
        await pg.barrier()

    errors = await attacked.run(main, return_exceptions=True)
    assert attack.done == 1 and fired == []
    for error in errors:
        assert isinstance(error, Tampered), error
        assert re.match(f"between rank (0 and rank 1|1 and rank 0) {ALTERED}", str(error))


@pytest.mark.parametrize(
    "forth",
    [
        lambda data: pack(Type.GOODBYE) + data,
        lambda data: struct.pack("<I", 96) + pack(Type.GOODBYE) + bytes(16) + data,
        twice,
        flipped,
        lambda data: b"\0" * len(data),
    ],
    ids=["a frame", "a frame in a record", "repeated", "a bit", "zeros"],
)
async def test_frames_of_a_data_link(forth: Callable[[bytes], bytes]) -> None:
    """A small tensor is not delivered altered, a goodbye is not believed, and neither rank is lost."""
    attacked = Attacked(2)

    async def main(pg: ProcessGroup) -> str:
        mine, theirs = np.arange(100.0), np.zeros(100)
        await pg.barrier()
        if pg.rank == 1:
            await pg.recv(theirs, 0)  # which dials: what follows is the attacker's
            attacked.strike(1, forth)
        else:
            await pg.send(mine, 1)
        with pytest.raises(Tampered, match=ALTERED):
            if pg.rank == 0:
                await pg.recv(np.zeros(1), 1)
                await pg.send(mine + 1, 1)
            else:
                await pg.send(np.zeros(1), 0)
                await pg.recv(theirs, 0)
            await pg.barrier()
        async with await pg.rebuild() as after:
            assert after.size == 2  # nobody was given up
            total = np.ones(5)
            await after.all_reduce(total)
            assert (total == 2).all()
        return "on"

    assert await attacked.run(main) == ["on", "on"]


@pytest.mark.parametrize("size", [2, 3])
async def test_control_links(size: int) -> None:
    """The link is made anew. The group breaks, as some of what was said is missing; nobody is lost. What is
    said before the link stands again comes late: between two ranks there is no other way."""
    attacked = Attacked(size)

    async def main(pg: ProcessGroup) -> str:
        await pg.barrier()
        if pg.rank == 0:  # the others dialed its control links
            attack = attacked.strike(0, lambda data: data.replace(b"honest", b"forged"))
        if pg.rank == 1:
            core_of(pg).control.tell([0], Say.stalled, core_of(pg).roster.context, 1 << 40, b"honest" * 9)
        with pytest.raises(Tampered, match=ALTERED):
            while True:
                await pg.barrier()
        if pg.rank == 0:
            assert attack.done == 1
        assert not core_of(pg).control.core.lost
        async with await pg.rebuild(timeout=20) as after:
            assert after.size == size
            await after.barrier()
        return "on"

    assert await attacked.run(main) == ["on"] * size


@pytest.mark.parametrize(
    ("code", "way"), [(1, "forth"), (2, "back"), (4, "back")], ids=["ready", "draft", "decided"]
)
async def test_a_motion_that_is_altered_on_its_way(code: int, way: str) -> None:
    """It is said again on the link that takes the place of the torn one."""
    attacked = Attacked(2)
    motion = re.compile(rb"\x96\x08.{1,12}\xff@\x92.{1,9}(\xc4.|\xc5..)\x92" + bytes([code]), re.DOTALL)
    attack = Once(lambda data: flipped(data) if motion.search(data) else data, True)
    setattr(attacked.relays[0], way, attack)  # rank 1 dials its control link

    async def main(pg: ProcessGroup) -> int:
        async with await pg.rebuild(timeout=20) as after:
            await after.barrier()
            return after.size

    assert await attacked.run(main) == [2, 2]
    assert attack.done == 1


async def test_bytes_of_large_tensors_are_not_authenticated() -> None:
    """Without TLS. Their headers are: the attacker cannot say where they go, or what else they are."""
    attacked = Attacked(2)
    n = 100_000

    async def main(pg: ProcessGroup) -> Any:
        await pg.barrier()
        if pg.rank == 0:
            await pg.send(np.full(n, 7, np.uint8), 1)
            return None
        attack = attacked.strike(1, lambda data: data.replace(b"\x07" * 1000, b"\x66" * 1000, 1))
        theirs = np.zeros(n, np.uint8)
        await pg.recv(theirs, 0)
        assert attack.done == 1
        return theirs

    _, theirs = await attacked.run(main)
    assert (theirs == 0x66).sum() == 1000 and (theirs == 7).sum() == n - 1000


@pytest.mark.parametrize(
    ("host", "secret", "refused"), [("0.0.0.0", b"", True), ("0.0.0.0", SECRET, False), (HOST, b"", False)]
)
async def test_pickle_is_refused_where_nobody_can_be_told_from_anybody(
    host: str, secret: bytes, refused: bool
) -> None:
    """Without a secret and TLS, in a job that other hosts can reach."""

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(asyncio.get_running_loop(), rank, "job", secret, host, mode="tcp")

    async def main(pg: ProcessGroup) -> None:
        if refused:
            with pytest.raises(UsageError, match=r"refused in a job without a secret.*AIODIST_SECRET"):
                pg.broadcast_object(Parcel(b""), allow_pickle=True)
            assert await pg.broadcast_object("data") == "data"
        else:
            await pg.broadcast_object(Parcel(b""), allow_pickle=True)

    await run_cluster(2, main, endpoint=endpoint)


def test_what_is_of_objects_stays_it_on_every_level() -> None:
    """Where a broadcast of objects goes from host to host its stages say so too, and are authenticated."""
    user = Call(Kind.broadcast, 7, np.dtype(np.uint8), (100_000,), root=0, detail=f"{AS}broadcast_object()")
    offer, detail = carried(user)
    stage = Call(Kind.all_gather, 1, np.dtype(np.uint8), (50_000,), None, NO_ROOT, offer, detail)
    tensors = Call(Kind.broadcast, 7, np.dtype(np.uint8), (100_000,), root=0)
    nothing: Any = None
    for call, tag, sealed in (
        (user, 0, True),
        (stage, 0, True),
        (tensors, 0, False),
        (tensors, OBJECT_TAGS, True),
    ):
        assert Operation(call, nothing, None, None, None, nothing, tag=tag).sealed is sealed


@pytest.mark.parametrize("way", ["forth", "back"])
@pytest.mark.parametrize(
    "rewrite", [flipped, twice, lambda data: b"\0" * 40 + data], ids=["bit", "twice", "put"]
)
async def test_calls_streams_and_messages(way: str, rewrite: Callable[[bytes], bytes]) -> None:
    """Who asked is told what happened, on whichever way it did; nobody is lost, and the next call goes on."""
    attacked = Attacked(2)
    ran: list[int] = []

    async def main(pg: ProcessGroup) -> str:
        @pg.handler
        async def waits(number: int) -> int:
            ran.append(number)
            if number:
                await asyncio.Event().wait()
            return number

        @pg.handler
        async def parts() -> AsyncIterator[int]:
            yield 0
            await asyncio.Event().wait()

        await pg.barrier()
        if pg.rank == 0:
            stream = pg.stream(1, parts)
            assert await anext(stream) == 0
            assert await pg.call(1, waits, 0) == 0
            asked = [
                asyncio.ensure_future(pg.call(1, waits, 7)),
                asyncio.ensure_future(pg.call(1, waits, 8)),
                asyncio.ensure_future(anext(stream)),
            ]
            while 8 not in ran:  # noqa: ASYNC110
                await asyncio.sleep(0)
            attack = Once(rewrite, True)
            setattr(attacked.relays[1], way, attack)
            sending = asyncio.ensure_future(pg.send_message(1, "hello"))
            for one in [*asked, sending]:
                with pytest.raises(dist.CallUnknown, match=ALTERED) as caught:
                    await one
                assert isinstance(caught.value.__cause__, Tampered)
            assert attack.done == 1
            assert await pg.call(1, waits, 0) == 0
            await pg.send_message(1, "end")
        else:
            async for _, message in pg.messages():
                if message == "end":
                    break
        await pg.barrier()
        assert not core_of(pg).control.core.lost
        return "on"

    assert await attacked.run(main) == ["on", "on"]
