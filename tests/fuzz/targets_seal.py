"""Fuzzed: authenticated connections, as attackers on the path and as members, who have the key, use them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from aiodist.base.errors import Tampered, WireError
from aiodist.net.sealed import SealedSocket
from aiodist.net.wire import seal
from aiodist.net.wire.frame import HEADER
from aiodist.transport.receiving import Incoming
from aiodist.transport.stream import StreamLink
from tests.fuzz.engine import Judgement
from tests.fuzz.mutate import headers, raw
from tests.fuzz.target import Run, Target
from tests.fuzz.targets_transport import Ends, Posted, sent

KEY, OTHER = bytes(range(32)), bytes(32)
PAYLOADS: list[list[bytes | int]] = [
    [b"hello"],
    [b"one", b"two", b"three" * 50],
    [b"x" * 3000, b"y"],
    [9, b"behind", 300, b"y"],
]


# ── records ──────────────────────────────────────────────────────────────────────────────────────────


def stream_of(payloads: list[bytes | int]) -> bytes:
    """One direction of a connection; a number stands for a raw payload."""
    sealer = seal.Sealer(KEY)
    return b"".join(
        sealer.announce(one) + b"r" * one if isinstance(one, int) else sealer.seal(one) for one in payloads
    )


def streams() -> list[bytes]:
    """Bytes for which of them it is, and for the size of the pieces in which it comes; then the stream."""
    return [
        bytes([which, step]) + stream_of(payloads)
        for which, payloads in enumerate(PAYLOADS)
        for step in (0, 1, 7, 64)
    ]


def opened(opener: seal.Opener, stream: bytes, step: int) -> Iterator[bytes]:
    """What is opened of a stream, raw payloads left out."""
    for at in range(0, len(stream), step):
        yield opener.feed(stream[at : at + step])
        while opener.pending:
            opener.take_raw(memoryview(bytearray(100)))
            if not opener.raw:
                yield opener.feed(b"")
        if opener.held > seal.RECORD + 20 + step:
            raise Judgement(f"{opener.held} bytes are held back")


@contextmanager
def open_unauthenticated() -> Iterator[Run]:
    honest = [b"".join(one for one in payloads if isinstance(one, bytes)) for payloads in PAYLOADS]

    def run(data: bytes) -> str:
        which, step = (*data[:2], 0, 0)[:2]
        opener, got = seal.Opener(KEY), b""
        try:
            for piece in opened(opener, data[2:], step or len(data) or 1):
                got += piece
        finally:
            if not any(one.startswith(got) for one in honest):
                raise Judgement(f"opened {got!r:.100}, which nobody has sealed")
        return "" if got == honest[which % len(honest)] else "cut"

    yield run


def by_member(data: bytes) -> bytes:
    """Records of one who has the key: whatever sizes and bytes `data` says."""
    sealer, made, at = seal.Sealer(KEY), bytearray(), 0
    while len(data) - at >= 2:
        (size,) = struct.unpack_from("<H", data, at)
        at += 2
        body = data[at : at + (size & 0x3FFF)]
        at += len(body)
        match size >> 14:
            case 0 | 1:
                made += sealer.seal(body)
            case 2:
                made += sealer.announce(len(body)) + body
            case _:
                made += sealer.announce((size << 16 | size) & 0x7FFFFFFF) + body
    return bytes(made)


def scripts() -> list[bytes]:
    """What `by_member` reads."""
    return [
        b"\x05\x00hello\x00\x00\x03\x00one",
        b"\x05\x80rrrrr\x02\x00ok",
        b"\x01\xc0r" + b"\xff\xff" + b"r" * 50,
        b"\xe8\x03" + b"x" * 1000,
    ]


@contextmanager
def open_member() -> Iterator[Run]:
    def run(data: bytes) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            sock = SealedSocket(ours, (OTHER, KEY))
            stream = by_member(data)
            theirs.send(stream[:100_000])
            theirs.shutdown(socket.SHUT_WR)
            got = 0
            while count := sock.recv_into(bytearray(1000)):
                got += count
            return "" if got else "nothing"

    yield run


# ── a data link over them ────────────────────────────────────────────────────────────────────────────


class SealedEnds(Ends):
    """Ends of which the near one is authenticated."""

    def __init__(self) -> None:
        super().__init__()
        self.sealed = SealedSocket(self.near, (OTHER, KEY))


def framed_streams() -> list[bytes]:
    """Frames of a sender, sealed by it."""
    return [stream_of([frames]) for frames in sent(True) if len(frames) <= seal.RECORD]


def over_link(knows: bool) -> object:
    """A data link that hears frames of a member, in records; or a member's records, changed on the path."""

    @contextmanager
    def opened_link() -> Iterator[Run]:
        honest = set(framed_streams())

        def run(data: bytes) -> str:
            ends = SealedEnds()
            arrived: list[int] = []
            try:
                receiver = Incoming(1, lambda *_: arrived.append(1), ends.on_end)
                posted = Posted(receiver, True)
                receiver.attach(StreamLink(ends.loop, ends.sealed))  # type: ignore[arg-type]
                cut = len(data) * 7 % 300 + 1
                pieces: list[bytes | int] = [data[at : at + cut] for at in range(0, len(data), cut)]
                ends.feed(stream_of(pieces) if knows else data)
                posted.check()
                receiver.kill()
                word = ends.word()
                whole = any(data.startswith(one) or one.startswith(data) for one in honest)
                if not knows and not whole and (arrived or word not in ("tampered", "lost")):
                    raise Judgement(f"an altered record was accepted: {word}")
                return word
            finally:
                ends.close()

        yield run

    return opened_link


TARGETS = [
    Target(
        "records",
        "authenticated records, changed on the way",
        streams,
        open_unauthenticated,
        (Tampered,),
        (raw,),
    ),
    Target("records-member", "records of a member", scripts, open_member, (WireError,), (raw,), 0.4),
    Target(
        "sealed-stream",
        "frames of a sender, in authenticated records",
        lambda: [frames for frames in sent(True) if len(frames) > HEADER],
        over_link(True),  # type: ignore[arg-type]
        (),
        (raw, headers, headers),
        0.3,
    ),
    Target(
        "sealed-unauthenticated",
        "frames in authenticated records, changed on the way",
        framed_streams,
        over_link(False),  # type: ignore[arg-type]
        (),
        (raw,),
        0.2,
    ),
]
