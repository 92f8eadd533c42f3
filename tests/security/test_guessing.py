"""Who does not know the secret gets nothing to try guesses on, and is not told the job's name."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import struct
import subprocess
import sys

import pytest

from aiodist.base.errors import AuthenticationError
from aiodist.net.wire import handshake as wire
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.rendezvous import StoreServer
from aiodist.transport import SocketEndpoint

WEAK = b"hunter2"
JOB = "tell-nobody-my-name"
HOST = "127.0.0.1"
GUESSES = (b"password", b"123456", b"letmein", WEAK)


async def hear(address: tuple[str, int], *said: bytes) -> bytes:
    """All that a listener says to who says this, one message after the other."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        heard = b""
        for words in said:
            await loop.sock_sendall(sock, words)
            heard += await loop.sock_recv(sock, 4096)
        try:
            sock.shutdown(socket.SHUT_WR)
            while data := await loop.sock_recv(sock, 4096):
                heard += data
        except ConnectionError:
            pass
    return heard


def digests(hello: bytes, heard: bytes, secret: bytes) -> set[bytes]:
    """What a server that knows `secret` could have made of a connection: each proof over each part of it."""
    messages, at = [], 0
    while at + wire.PREFIX.size <= len(heard):
        end = at + wire.PREFIX.size + wire.PREFIX.unpack_from(heard, at)[3]
        messages.append(heard[at:end])
        at = end
    made = set()
    for count in range(len(messages) + 1):
        transcript = hello + b"".join(messages[:count])
        made |= {
            hmac.digest(secret, role + transcript, "sha256") for role in (b"server", b"client", b"keys", b"")
        }
    return made


async def test_one_connection_gives_nothing_to_guess_on() -> None:
    """The audit's attack: connect, hear, hang up; then try a list of passwords on what was heard."""
    made = await SocketEndpoint.open(rank=0, job=JOB, secret=WEAK, mode="tcp")
    async with await StoreServer.start(HOST, 0, JOB, WEAK) as server:
        for purpose, address in (
            (Purpose.store, (HOST, server.port)),
            (Purpose.data, tuple(made.card["tcp"])),
            (Purpose.control, tuple(made.card["tcp"])),
        ):
            for job in (JOB, "guess"):
                identity = Identity(job, purpose, 7, b"c" * NONCE_BYTES)
                hello = Handshake.client(identity, b"", os.urandom(NONCE_BYTES)).data_to_send()
                for rest in ((), (wire.pack_message(wire.MessageKind.proof, bytes(32)),)):
                    heard = await hear(address, hello, *rest)
                    assert heard  # it does answer
                    for guess in GUESSES:
                        assert not [proof for proof in digests(hello, heard, guess) if proof in heard]
    await made.aclose()


async def test_the_job_s_name_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiodist")
    made = await SocketEndpoint.open(rank=0, job=JOB, secret=WEAK, mode="tcp")
    async with await StoreServer.start(HOST, 0, JOB, WEAK) as server:
        for purpose, address in (
            (Purpose.store, (HOST, server.port)),
            (Purpose.data, tuple(made.card["tcp"])),
        ):
            heard = {}
            for job in ("guess", JOB):  # and no difference tells whether a guessed name is right
                identity = Identity(job, purpose, 7, b"c" * NONCE_BYTES)
                hello = Handshake.client(identity, b"", os.urandom(NONCE_BYTES)).data_to_send()
                heard[job] = await hear(address, hello, wire.pack_message(wire.MessageKind.proof, bytes(32)))
                assert JOB.encode() not in heard[job]
                assert b"another secret" in heard[job]
            challenge = wire.PREFIX.size + NONCE_BYTES
            assert heard["guess"][challenge:] == heard[JOB][challenge:]
    await made.aclose()


async def test_the_job_s_name_is_told_to_who_knows_the_secret() -> None:
    """Two jobs of one user meet at one address: both are told which."""
    async with await StoreServer.start(HOST, 0, JOB, WEAK) as server:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, (HOST, server.port))
            client = Handshake.client(Identity("mine", Purpose.store), WEAK, os.urandom(NONCE_BYTES))
            with pytest.raises(AuthenticationError, match=f"belongs to job '{JOB}', this process to 'mine'"):
                while not client.done:
                    await loop.sock_sendall(sock, client.data_to_send())
                    client.receive(await loop.sock_recv(sock, 4096))


async def test_a_proof_for_one_is_worth_nothing_at_another() -> None:
    """An attacker on the path hands a rank's connection to another rank, which must not take it."""
    made = [await SocketEndpoint.open(rank=rank, job=JOB, secret=WEAK, mode="tcp") for rank in range(3)]
    loop = asyncio.get_running_loop()
    for one in made:
        one.introduce({rank: other.card for rank, other in enumerate(made)})
    taken: list[int] = []
    made[2].on_control = lambda rank, link: (taken.append(rank), link.kill())[0]  # type: ignore[func-returns-value]

    async def divert(listener: socket.socket) -> None:
        near, _ = await loop.sock_accept(listener)
        with near, socket.socket() as far:
            far.setblocking(False)
            await loop.sock_connect(far, tuple(made[2].card["tcp"]))
            for source, target in ((near, far), (far, near)) * 2:
                await loop.sock_sendall(target, await loop.sock_recv(source, 4096))

    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        made[0].introduce({1: made[1].card | {"tcp": list(listener.getsockname())}})
        diverting = asyncio.ensure_future(divert(listener))
        with pytest.raises(Exception, match="another process has taken that address"):
            await made[0].link_control(1)
        await diverting
    assert taken == []
    await asyncio.gather(*(one.aclose() for one in made))


def test_a_welcome_needs_the_secret_too() -> None:
    """An impostor that has the client's proof cannot answer it."""
    client = Handshake.client(Identity(JOB, Purpose.store), b"s" * 32, b"a" * NONCE_BYTES)
    client.receive(wire.pack_message(wire.MessageKind.challenge, b"b" * NONCE_BYTES))
    client.data_to_send()
    made_up = bytes(32) + struct.pack("<iH", 0, 0)
    with pytest.raises(AuthenticationError, match="another secret"):
        client.receive(wire.pack_message(wire.MessageKind.welcome, made_up))
    assert not client.done


@pytest.mark.parametrize(("secret", "lines"), [("hunter2", 1), ("x" * 15, 1), ("x" * 16, 0)])
def test_a_short_secret_is_warned_about_once(secret: str, lines: int) -> None:
    code = (
        "import logging, os; logging.basicConfig(format='%(name)s %(message)s')\n"
        "from aiodist.base.environment import secret\n"
        "for _ in range(3): secret(os.environ)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AIODIST_SECRET": secret},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said = [line for line in result.stderr.splitlines() if "aiodist" in line]
    assert len(said) == lines
    assert all("shorter than 16 bytes" in line and secret not in line for line in said)
