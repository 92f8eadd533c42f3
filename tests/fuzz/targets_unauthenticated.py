"""Fuzzed: what peers send before they are authenticated, with descriptors of every kind beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from aiodist.base.errors import AuthenticationError, WireError
from aiodist.net.wire.frame import HEADER, Type, pack
from aiodist.net.wire.handshake import Handshake
from aiodist.net.wire.local_message import MESSAGE_BYTES, LocalMessage, seal
from aiodist.transport.greeting import Greeting
from aiodist.transport.local_handshake import LocalHandshake, Me
from aiodist.transport.local_peers import LocalPeers
from aiodist.transport.shm.arena import Arena
from tests.fuzz.engine import Judgement
from tests.fuzz.mutate import Corpus, headers, raw
from tests.fuzz.target import Run, Target
from tests.fuzz.targets_transport import Ends
from tests.fuzz.targets_wire import JOB, SECRET, A, B, _identity, conversations, resealed

NBYTES = 2 << 20
"""Usable bytes of the memory that a peer passes."""

# ── a local connection ───────────────────────────────────────────────────────────────────────────────


def greetings() -> list[bytes]:
    """A byte that says how many descriptors come with it, then a handshake and a first frame."""
    opening = pack(Type.BLOCKS, word=1 << 20)
    made = []
    for talk in conversations(0)[::4]:
        said = talk[1:]
        made += [bytes([how]) + said + opening for how in (0, 1, 2, 9)]
    return made


def behind(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """Change only what comes with a handshake and after it."""
    at = len(data) - HEADER if len(data) > HEADER else 0
    how = bytes([draw(st.integers(0, 255))]) if draw(st.booleans()) else data[:1]
    return how + data[1:at] + headers(draw, data[at:], [one[-HEADER:] for one in corpus])


def descriptors() -> set[str]:
    """What this process holds open."""
    return set(os.listdir("/proc/self/fd"))


def _descriptor(kind: int) -> int:
    """A descriptor such as an unauthenticated peer might send."""
    match kind % 6:
        case 0 | 1:
            return _arena().fd if kind % 6 == 0 else _unsealed()
        case 2:
            return os.open("/dev/null", os.O_RDWR)
        case 3:
            return os.eventfd(0, os.EFD_NONBLOCK)
        case 4:
            return os.eventfd(0)
        case _:
            one, other = socket.socketpair()
            other.close()
            return one.detach()


def _arena() -> Any:
    arena = Arena(NBYTES, b"n" * 32)
    fd = os.dup(arena.fd)
    arena.close()
    arena.fd = fd
    return arena


def _unsealed() -> int:
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, Arena.file_bytes(NBYTES))
    fcntl.fcntl(fd, 1033, 0x2)  # it may not shrink, but be written
    return fd


@contextmanager
def open_greeting() -> Iterator[Run]:
    def run(sequence: bytes) -> str:
        before = descriptors()
        ends = Ends()
        greeting = Greeting(ends.loop, ends.near)  # type: ignore[arg-type]
        through = False

        async def greet() -> None:
            nonlocal through
            await greeting.shake(Handshake.server(_identity(rank=0), SECRET, B))
            through = True

        task = greet()
        how, rest = sequence[:1], sequence[1:]
        kinds = how[0] if how else 0
        given = [_descriptor(kinds // 8 + number) for number in range(kinds & 3)]
        step = 96 if kinds & 64 else 4096
        gone = False
        at = 0
        try:
            while True:
                try:
                    task.send(None)
                except StopIteration:
                    break
                if gone:
                    raise Judgement("it waits for more after the end")
                if at >= len(rest):
                    ends.far.close()
                    gone = True
                else:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(given)}i", *given))]
                    last = at + step >= len(rest) - HEADER
                    ends.far.sendmsg([rest[at : at + step]], rights if given and last else [])
                    at += step
                ends.loop.turn()
            if not through:
                raise Judgement("a handshake that has no end")
            return ""
        except ConnectionResetError:
            return "hung up"
        finally:
            task.close()
            greeting.close()
            ends.close()
            for fd in given:
                os.close(fd)
            if descriptors() - before:
                raise Judgement(f"descriptors left: {descriptors() - before}")

    yield run


def local() -> list[bytes]:
    """A byte that says whose MACs are made right again, one with the descriptors, then what a caller says: a
    hello, and its segment."""
    nbytes = Arena.file_bytes(NBYTES)
    segments = [
        LocalMessage(1, A, nbytes, b"n" * 32),
        LocalMessage(1, A, nbytes, b"n" * 32, linked=True),
        LocalMessage(1, A, 0, bytes(32)),
        LocalMessage(1, A, 1 << 40, b"n" * 32),
        LocalMessage(2, A, nbytes, b"n" * 32),
    ]
    hello = seal(LocalMessage(1, A, 0, b"t" * 32), SECRET, JOB, 0, B)
    return [
        bytes([how, kinds]) + hello + seal(segment, SECRET, JOB, 0, B, hello)
        for segment in segments
        for how in (0, 1, 2, 3)
        for kinds in (0, 2, 3, 10, 0x82)
    ]


@contextmanager
def open_local() -> Iterator[Run]:
    cards = {1: {"nonce": A, "mail": b"nobody"}, 2: {"nonce": b"c" * 16, "mail": b"nobody"}}

    def run(sequence: bytes) -> str:
        before = descriptors()
        ends = Ends()
        loop: Any = ends.loop
        peers = LocalPeers(loop, Me(0, JOB, SECRET, B), 1 << 20)
        given: list[int] = []
        try:
            peers.introduce(cards)
            how, kinds = (*sequence[:2], 0, 0)[:2]
            hello, segment = sequence[2 : 2 + MESSAGE_BYTES], sequence[2 + MESSAGE_BYTES :]
            if how & 1:
                hello = resealed(hello)
            count = kinds & 7
            usual = (0, 3, 5)  # memory, a bell, and one too many
            given = [_descriptor(usual[n] if n < 3 and kinds < 128 else kinds // 8 + n) for n in range(count)]
            peers._handshakes[handshake := LocalHandshake(loop, ends.near, peers._me, peers)] = None
            ends.far.sendall(hello)
            loop.turn(2)
            heard = b""
            if handshake in peers._handshakes and len(hello) == MESSAGE_BYTES:
                heard = ends.far.recv(1000)
                if len(heard) != MESSAGE_BYTES:
                    raise Judgement("no answer to a hello")
            if how & 2 and heard:
                segment = resealed(segment, hello + heard)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(given)}i", *given))]
            with contextlib.suppress(OSError):  # it hung up
                ends.far.sendmsg([segment or b"x"], rights if given else [])
            loop.turn(3)
            loop.run_until_idle()
            if peers.peer_segments and not (how & 2 and heard):
                raise Judgement("an unauthenticated peer was accepted")
            return "" if peers.peer_segments else "refused" if handshake not in peers._handshakes else "waits"
        finally:
            peers.close()
            ends.close()
            for fd in given:
                os.close(fd)
            if descriptors() - before:
                raise Judgement(f"descriptors left: {descriptors() - before}")

    yield run


TARGETS = [
    Target(
        "greeting",
        "what an unauthenticated peer sends on a local socket",
        greetings,
        open_greeting,
        (WireError, AuthenticationError),
        (raw, behind),
        0.1,
    ),
    Target("local-peers", "messages, with descriptors of every kind", local, open_local, (), (raw,), 0.2),
]
