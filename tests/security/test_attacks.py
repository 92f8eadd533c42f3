"""Unauthenticated peers at every listener of a job: a rank's and a store's, over TCP and over Unix sockets.

Whatever they try they are closed on, one line says why, nothing secret is in it, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from aiodist.base.errors import AiodistError, AuthenticationError, PeerLost
from aiodist.net import admission, local_socket
from aiodist.net.wire import handshake as wire
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.net.wire.seal import Sealer
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.transport import ControlLink, Key, SocketEndpoint
from aiodist.transport.listening import unix_address
from aiodist.transport.shm.arena import available
from tests.support.channel_pair import Pair, Recorder, turn_until
from tests.support.strangers import Host, limit_handshakes, limit_silent, shaking_hands, silent

SECRET = b"the secret that nobody must see"
HOST = "127.0.0.1"
DOORS = [
    "rank",
    "store",
    *(["rank, unix"] if available() else []),
    *(["store, unix"] * (sys.platform == "linux")),
]


@dataclass
class Door:
    """One listener of a job that is under way."""

    purpose: Purpose
    address: Any
    still_works: Callable[[], Awaitable[None]]
    log: pytest.LogCaptureFixture
    host: Host

    async def knock(self) -> Stranger:
        family = socket.AF_INET if isinstance(self.address, tuple) else socket.AF_UNIX
        sock = socket.socket(family)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return Stranger(sock, self.purpose)

    async def said(self, pattern: str) -> None:
        """Until the last line of the log says so; then that the job has not noticed anything."""
        records = self.log.records
        await turn_until(lambda: bool(records and re.search(pattern, records[-1].getMessage())))
        for record in self.log.records:
            assert record.getMessage().isprintable()
            assert SECRET.decode() not in record.getMessage()
        await self.still_works()

    def strangers(self) -> int:
        """How many there are at a time who have not proved themselves."""
        return silent(self.host) + shaking_hands(self.host)

    def limit(self, most: int) -> None:
        """Let so many be silent, and so many shake hands, at a time."""
        limit_silent(self.host, most)
        limit_handshakes(self.host, most)

    async def empty(self) -> None:
        """Until nobody is left who is not of the job."""
        await turn_until(lambda: not self.strangers())


class Stranger:
    """A connection that is not of the job, by hand."""

    def __init__(self, sock: socket.socket, purpose: Purpose) -> None:
        self.sock = sock
        self.purpose = purpose
        self.sent = b""
        self.sealer: Sealer | None = None  # of a member's: what it says behind the handshake
        self._loop = asyncio.get_running_loop()

    def identity(self, job: str = "job") -> Identity:
        return Identity(job, self.purpose, 7, b"c" * 16)

    def genuine(self) -> Handshake:
        return Handshake.client(self.identity(), SECRET, b"n" * NONCE_BYTES)

    async def say(self, data: bytes) -> None:
        if self.sealer is not None:
            data = self.sealer.seal(data)
        self.sent += data
        await self._loop.sock_sendall(self.sock, data)

    async def hear(self) -> bytes:
        try:
            return await self._loop.sock_recv(self.sock, 4096)
        except ConnectionError:
            return b""

    async def hear_all(self) -> bytes:
        """To the end, which has to come."""
        heard = b""
        while data := await self.hear():
            heard += data
        self.sock.close()
        return heard

    async def shake(self, handshake: Handshake) -> None:
        """Carry out a handshake, as far as the other side lets us."""
        while True:
            if data := handshake.data_to_send():
                await self.say(data)
            if handshake.done:
                if self.sock.family != getattr(socket, "AF_UNIX", None):
                    self.sealer = Sealer(handshake.keys[0])
                return
            data = await self.hear()
            if not data:
                raise ConnectionResetError
            handshake.receive(data)

    async def challenge(self) -> bytes:
        """Say hello → the server's challenge."""
        await self.say(Handshake.client(self.identity(), b"?", bytes(NONCE_BYTES)).data_to_send())
        heard = b""
        while len(heard) < wire.PREFIX.size + NONCE_BYTES:
            if not (data := await self.hear()):
                raise ConnectionResetError
            heard += data
        return heard


@pytest.fixture(params=DOORS)
async def door(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Door]:
    caplog.set_level(logging.WARNING, "aiodist")
    unix = "unix" in request.param
    numbers = iter(range(1000))
    if "store" in request.param:
        async with (
            await StoreServer.start(HOST, 0, "job", SECRET) as server,
            await TcpStore.connect(HOST, server.port, "job", SECRET, 10) as store,
        ):

            async def stored() -> None:
                number = next(numbers)
                assert await store.add("n", 1) == number + 1

            address: Any = local_socket.local_address(HOST, server.port) if unix else (HOST, server.port)
            yield Door(Purpose.store, address, stored, caplog, server)
        return
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=SECRET, mode="auto") for rank in range(2)]
    for one in made:
        one.introduce({rank: other.card for rank, other in enumerate(made)})
    made[1].on_control = lambda rank, link: link.kill()
    pair = Pair(made[0], made[1])

    async def passes() -> None:
        await pair.passes(Key(1, 0, next(numbers), 0), 1000)
        assert not pair.at_sender.losses and not pair.at_receiver.losses

    await passes()
    address = unix_address(made[1].card["unix"]) if unix else tuple(made[1].card["tcp"])
    yield Door(Purpose.control, address, passes, caplog, made[1])
    await asyncio.gather(*(one.aclose() for one in made))


@pytest.mark.parametrize("secret", [b"", b"guess"], ids=["no secret", "wrong secret"])
async def test_who_does_not_know_the_secret(door: Door, secret: bytes) -> None:
    """Both are told, and the server has shown nothing that the secret went into."""
    stranger = await door.knock()
    with pytest.raises(AuthenticationError, match="has another secret than this process"):
        await stranger.shake(Handshake.client(stranger.identity(), secret, bytes(NONCE_BYTES)))
    stranger.sock.close()
    await door.empty()
    await door.still_works()


async def test_who_is_of_another_job(door: Door) -> None:
    stranger = await door.knock()
    with pytest.raises(AuthenticationError, match="belongs to job 'job', this process to 'other'"):
        await stranger.shake(Handshake.client(stranger.identity("other"), SECRET, bytes(NONCE_BYTES)))
    assert await stranger.hear_all() == b""
    await door.said("refused .*: rank 7 belongs to job 'other', this process to 'job'")


async def test_a_client_that_proves_the_wrong_thing(door: Door) -> None:
    stranger = await door.knock()
    await stranger.challenge()
    await stranger.say(wire.pack_message(wire.MessageKind.proof, bytes(32)))
    assert b"another secret" in await stranger.hear_all()
    await door.said("refused .*: rank 7 has another secret than this process")


async def test_a_job_name_that_gives_orders(door: Door) -> None:
    stranger = await door.knock()
    await stranger.say(
        Handshake.client(stranger.identity("\x1b[2J\nall is well"), b"", bytes(NONCE_BYTES)).data_to_send()
    )
    await stranger.hear()
    await stranger.say(wire.pack_message(wire.MessageKind.proof, bytes(32)))
    await stranger.hear_all()
    await door.said("another secret")  # and what it calls itself is nobody's concern
    stranger = await door.knock()
    with pytest.raises(AuthenticationError):
        await stranger.shake(
            Handshake.client(stranger.identity("\x1b[2J\nall is well"), SECRET, bytes(NONCE_BYTES))
        )
    stranger.sock.close()
    await door.said(r"refused .*: rank 7 belongs to job '\[2J all is well'")


async def test_replay(door: Door) -> None:
    """The bytes of a genuine client, all of them, again."""
    genuine = await door.knock()
    await genuine.shake(genuine.genuine())
    recorded = genuine.sent
    genuine.sock.close()
    stranger = await door.knock()
    await stranger.say(recorded)
    assert b"another secret" in await stranger.hear_all()
    await door.said("refused .*: rank 7 has another secret than this process")


async def test_reflection(door: Door) -> None:
    """The server's own messages sent back to it."""
    stranger = await door.knock()
    challenge = await stranger.challenge()
    await stranger.say(challenge)
    await stranger.hear_all()
    await door.said("out of turn")
    stranger = await door.knock()
    nonce = (await stranger.challenge())[wire.PREFIX.size :]
    other = await door.knock()
    await other.say(Handshake.client(other.identity(), b"?", nonce).data_to_send())  # in another session
    await other.hear()
    await other.say(wire.pack_message(wire.MessageKind.proof, bytes(32)))
    assert b"another secret" in await other.hear_all()
    stranger.sock.close()
    await door.empty()
    await door.still_works()


async def test_a_parallel_session_is_no_oracle(door: Door) -> None:
    """What a genuine client proves in one session is worth nothing in another with the same words."""
    one, two = await door.knock(), await door.knock()
    genuine = one.genuine()
    await one.say(genuine.data_to_send())
    genuine.receive(await one.hear())
    proof = genuine.data_to_send()
    await two.challenge()
    await two.say(proof)
    assert b"another secret" in await two.hear_all()
    one.sock.close()
    await door.said("another secret")


async def test_every_flipped_bit_of_a_proof(door: Door) -> None:
    for bit in range(256):
        stranger = await door.knock()
        handshake = Handshake.client(stranger.identity(), SECRET, bytes(NONCE_BYTES))
        await stranger.say(handshake.data_to_send())
        handshake.receive(await stranger.hear())
        proof = bytearray(handshake.data_to_send())
        proof[wire.PREFIX.size + bit // 8] ^= 1 << bit % 8
        await stranger.say(bytes(proof))
        assert b"another secret" in await stranger.hear_all()
    assert len(door.log.records) <= 12  # it is said, but not 256 times
    await door.empty()
    await door.still_works()


@pytest.mark.parametrize("version", [0, wire.PROTOCOL_VERSION + 1, 65535])
async def test_another_version(door: Door, version: int) -> None:
    stranger = await door.knock()
    hello = bytearray(Handshake.client(stranger.identity(), SECRET, bytes(NONCE_BYTES)).data_to_send())
    struct.pack_into("<H", hello, 8, version)
    await stranger.say(bytes(hello))
    assert f"this process {version}".encode() in await stranger.hear_all()
    await door.said(f"rank 7 speaks protocol {version}, this process {wire.PROTOCOL_VERSION}")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak aiodist"),
        (b"\x00" * 100_000, "does not speak aiodist"),
        (wire.PREFIX.pack(b"AIODIST", 1, wire.PROTOCOL_VERSION, 65535) + bytes(70_000), "at most 2048"),
        (wire.pack_message(wire.MessageKind.proof, bytes(32)), "out of turn"),
        (wire.pack_message(wire.MessageKind.hello, b"\xff" * 2000), "cannot be read|contradict"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the client uses TLS"),
    ],
    ids=["http", "zeros", "a long one", "a proof first", "a hello of nonsense", "tls"],
)
async def test_words_that_are_none(door: Door, words: bytes, reason: str) -> None:
    stranger = await door.knock()
    try:
        await stranger.say(words)
    except ConnectionError:
        pass  # closed on while we were still talking
    await stranger.hear_all()
    await door.said(reason)


async def test_one_byte_at_a_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for all of the handshake, not for each byte."""
    monkeypatch.setattr(admission, "PATIENCE", 0.1)
    stranger = await door.knock()
    hello = Handshake.client(stranger.identity(), SECRET, bytes(NONCE_BYTES)).data_to_send()
    ended = asyncio.ensure_future(stranger.hear_all())
    for number in range(10_000):
        if ended.done():
            break
        try:
            await stranger.say(hello[number : number + 1] if number < len(hello) - 1 else b"")
        except OSError:
            break
        await asyncio.sleep(0.005)
    assert await ended == b""
    await door.said("refused .*: (it did not prove itself|no handshake) within 5 s")


async def test_a_crowd_that_says_nothing(door: Door) -> None:
    """As many as it takes to fill every table several times over: the first of them go, peers get in."""
    loop = asyncio.get_running_loop()
    most = 30
    door.limit(most)
    crowd = [await door.knock() for _ in range(4 * most)]
    genuine = await door.knock()
    await genuine.shake(genuine.genuine())
    assert door.strangers() <= most + 1
    await door.said("more than 30 connections say nothing")
    genuine.sock.close()
    for stranger in crowd[: 2 * most]:
        assert await loop.sock_recv(stranger.sock, 10) == b""
    for stranger in crowd:
        stranger.sock.close()
    await door.empty()


async def test_a_crowd_that_begins_to_shake_hands(door: Door) -> None:
    door.limit(10)
    crowd = []
    for _ in range(30):
        crowd.append(await door.knock())
        await crowd[-1].challenge()
    genuine = await door.knock()
    await genuine.shake(genuine.genuine())
    assert door.strangers() <= 10
    await door.said("more than 10 shake hands")
    for stranger in (*crowd, genuine):
        stranger.sock.close()
    await door.empty()


# Behind the handshake: a member, or somebody who took over a connection without TLS.


async def test_frames_of_a_store_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with await StoreServer.start(HOST, 0, "job", SECRET) as server:
        for words in (
            struct.pack("<I", (8 << 20) + 1),
            struct.pack("<I", 0xFFFFFFFF),
            struct.pack("<I", 3) + b"\xc1" * 3,
        ):
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (HOST, server.port))
            member = Stranger(sock, Purpose.store)
            await member.shake(member.genuine())
            await member.say(words)
            await member.hear_all()
        async with await TcpStore.connect(HOST, server.port, "job", SECRET, 10) as store:
            assert await store.add("n", 1) == 1


async def test_messages_of_a_control_link_are_bounded() -> None:
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=SECRET, mode="tcp") for rank in range(2)]
    came: asyncio.Queue[ControlLink] = asyncio.Queue()
    for one in made:
        one.observer = Recorder()
        one.on_control = lambda rank, link: came.put_nowait(link)
    made[1].introduce({0: made[0].card, 1: made[1].card})
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, tuple(made[1].card["tcp"]))
    member = Stranger(sock, Purpose.control)
    identity = Identity("job", Purpose.control, 0, made[0].card["nonce"])
    await member.shake(Handshake.client(identity, SECRET, b"n" * NONCE_BYTES))
    link = await came.get()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    link.on_closed = lambda goodbye, cause: ended.set_result(cause)
    link.on_message = lambda message: None
    await member.say(struct.pack("<I", (64 << 10) + 1))
    assert "a control message of 65537 bytes" in await ended
    await member.hear_all()
    await asyncio.gather(*(one.aclose() for one in made))


async def test_frames_of_a_channel_are_bounded() -> None:
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=SECRET, mode="tcp") for rank in range(2)]
    for one in made:
        one.observer = Recorder()
    made[1].introduce({0: made[0].card, 1: made[1].card})
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, tuple(made[1].card["tcp"]))
    member = Stranger(sock, Purpose.data)
    identity = Identity("job", Purpose.data, 0, made[0].card["nonce"])
    await member.shake(Handshake.client(identity, SECRET, b"n" * NONCE_BYTES))
    made[1].incoming(0)
    await member.say(b"\xff" * 200)
    await member.hear_all()
    recorder = made[1].observer
    assert isinstance(recorder, Recorder)
    await recorder.until(lambda: bool(recorder.losses))
    assert "protocol error" in recorder.losses[0][1]
    await asyncio.gather(*(one.aclose() for one in made))


async def test_a_rank_is_not_fooled_with_its_own_answers() -> None:
    """It dials an attacker, who dials it back and hands it what it says there itself."""
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=SECRET, mode="tcp") for rank in range(2)]
    loop = asyncio.get_running_loop()

    async def mirror(listener: socket.socket) -> None:
        sock, _ = await loop.sock_accept(listener)
        sock.setblocking(False)
        back = socket.socket()
        back.setblocking(False)
        await loop.sock_connect(back, tuple(made[0].card["tcp"]))
        for source, target in ((sock, back), (back, sock)) * 2:
            await loop.sock_sendall(target, await loop.sock_recv(source, 4096))
        while await loop.sock_recv(sock, 4096):
            pass
        sock.close()
        back.close()

    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        made[0].introduce({1: made[1].card | {"tcp": list(listener.getsockname())}})
        mirroring = asyncio.ensure_future(mirror(listener))
        with pytest.raises(PeerLost, match="another process has taken that address"):
            await made[0].link_control(1)
        await mirroring
    await asyncio.gather(*(one.aclose() for one in made))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel says who it is on Linux only")
async def test_another_user_of_the_host(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the secret, even: a Unix socket is no way around certificates."""
    if isinstance(door.address, tuple):
        pytest.skip("over TCP the kernel does not say")
    monkeypatch.setattr(local_socket, "credentials", lambda sock: (1, 12345, 12345))
    stranger = await door.knock()
    handshake = Handshake.client(stranger.identity(), SECRET, bytes(NONCE_BYTES))
    with pytest.raises((ConnectionError, AiodistError)):
        await stranger.shake(handshake)
    stranger.sock.close()
    await door.said("it runs under another user")


@pytest.mark.skipif(not available(), reason="needs memfd (Linux)")
async def test_unauthenticated_connections_in_bulk_at_a_local_socket() -> None:
    """Connections that say something, or nothing, or half a message: local peers still meet."""
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=SECRET) for rank in range(2)]
    for one in made:
        one.introduce({rank: other.card for rank, other in enumerate(made)})
    flooding = True

    async def flood() -> None:
        crowd: list[socket.socket] = []
        while flooding:
            for words in (b"AIODIST mail" + bytes(200), b"AIODIST", b""):
                crowd.append(sock := socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                try:
                    sock.connect(unix_address(made[0].card["mail"]))
                    sock.send(words)
                except OSError:
                    crowd.pop().close()  # full, for now
            while len(crowd) > 200:
                crowd.pop(0).close()
            await asyncio.sleep(0)
        for sock in crowd:
            sock.close()

    flooder = asyncio.ensure_future(flood())
    await asyncio.sleep(0)
    proofs = await asyncio.gather(made[0].prove_local([1]), made[1].prove_local([0]))
    flooding = False
    await flooder
    assert list(proofs) == [{1}, {0}]
    await asyncio.gather(*(one.aclose() for one in made))
