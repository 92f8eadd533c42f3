"""Fuzzed: the pure parsers of `wire`, which see bytes first."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aiodist.base.errors import AuthenticationError, UsageError, WireError
from aiodist.base.types import BFLOAT16, DTYPES, Call, Kind, ReduceOp
from aiodist.net.wire import frame, local_message, messages, objects
from aiodist.net.wire.handshake import MAX_CARD, MAX_JOB, Handshake, Identity, Purpose
from tests.fuzz.engine import Judgement
from tests.fuzz.mutate import Corpus, framed, headers, packed, raw
from tests.fuzz.target import Run, Target

SECRET, JOB = b"the secret", "job"
A, B = b"a" * 16, b"b" * 16
SIGNATURE = Call(Kind.all_reduce, 3, np.dtype(np.float32), (4, 5), ReduceOp.SUM).signature

# ── frames ───────────────────────────────────────────────────────────────────────────────────────────


def frames() -> list[bytes]:
    """Every type of frame, alone and in rows."""
    T, pack = frame.Type, frame.pack  # noqa: N806
    key = (7, 0, 3, 1)
    one = [
        pack(T.EAGER, *key, nbytes=5, total=5, signature=SIGNATURE) + b"hello",
        pack(T.EAGER, *key),
        pack(T.OFFER, *key, total=1 << 20, signature=SIGNATURE),
        pack(T.READY, *key, total=1 << 20),
        pack(T.DATA, *key, nbytes=16, offset=32, total=64, signature=SIGNATURE) + bytes(16),
        pack(T.DATA, *key),
        pack(T.MAPPED, *key, nbytes=4096, offset=4096, total=1 << 20, word=4096, signature=SIGNATURE),
        pack(T.CREDIT, 7, word=16384),
        pack(T.RELEASE, word=3),
        pack(T.BLOCKS, word=1 << 21),
        pack(T.GOODBYE),
    ]
    return [*one, b"".join(one)]


@contextmanager
def open_frame() -> Iterator[Run]:
    def run(data: bytes) -> str:
        at = 0
        while len(data) - at >= frame.HEADER:
            found = frame.parse(data, at)
            size = frame.payload_bytes(found)
            if not 0 <= size <= frame.PAYLOAD_LIMIT or found.offset + found.nbytes > found.total:
                raise Judgement(f"accepted {found}")
            again = frame.pack(
                *found[:5],
                nbytes=found.nbytes,
                offset=found.offset,
                total=found.total,
                word=found.word,
                signature=found.signature,
            )
            if again != data[at : at + frame.HEADER]:
                raise Judgement(f"{found} is not what was sent")
            at += frame.HEADER + size
        return "short" if len(data) > at else ""

    yield run


# ── handshakes ───────────────────────────────────────────────────────────────────────────────────────


def shake(client: Identity, server: Identity, secrets: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """All that a client and a server say to each other."""
    one, two = Handshake.client(client, secrets[0], A), Handshake.server(server, secrets[1], B)
    said: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(3):
        for mine, source, target in ((said[0], one, two), (said[1], two, one)):
            data = source.data_to_send()
            mine.append(data)
            try:
                target.receive(data)
            except (AuthenticationError, WireError):
                pass
    return b"".join(said[0]), b"".join(said[1])


def _identity(purpose: Purpose = Purpose.data, rank: int = 1, job: str = JOB, card: bytes = A) -> Identity:
    return Identity(job, purpose, rank, card)


def conversations(side: int) -> list[bytes]:
    """What one side of a handshake says, when all is well or not, behind a byte that says how it comes."""
    mine = _identity(rank=0)
    others = [
        (_identity(), (SECRET, SECRET)),
        (_identity(Purpose.control, 5, card=b""), (SECRET, SECRET)),
        (_identity(job="x" * MAX_JOB, card=b"c" * MAX_CARD), (SECRET, SECRET)),
        (_identity(job="another\n\x1b[2J"), (SECRET, SECRET)),
        (_identity(Purpose.store, -1), (SECRET, SECRET)),
        (_identity(), (b"other", SECRET)),
    ]
    talks = [shake(other, mine, secrets)[side] for other, secrets in others]
    talks += [talks[0] + b"what follows", talks[0] + talks[0]]
    return [bytes([how]) + talk for talk in talks for how in (0, 1, 7, 64)]


def open_handshake(is_server: bool) -> Any:
    """A handshake of one role; the first byte of an input says in pieces of how many bytes it comes."""
    right = conversations(0 if is_server else 1)[0][1:]

    @contextmanager
    def opened() -> Iterator[Run]:
        def run(data: bytes) -> str:
            make = Handshake.server if is_server else Handshake.client
            side = make(_identity(rank=0 if is_server else 1), SECRET, B if is_server else A)
            words = side.data_to_send()
            step = data[0] if data and data[0] else len(data) or 1
            rest = data[1:]
            try:
                for at in range(0, len(rest), step):
                    side.receive(rest[at : at + step])
                    words += side.data_to_send()
            except (AuthenticationError, WireError):
                words += side.data_to_send()
                side.receive(right)
                if side.done or side.data_to_send():
                    raise Judgement("a handshake that failed goes on") from None
                raise
            finally:
                if len(words) > 4096:
                    raise Judgement(f"{len(words)} bytes said to an unauthenticated peer")
                if is_server and not side.done and b"AIODIST\x05" in words:
                    raise Judgement(f"a welcome before the proof: {words!r:.300}")
            if side.done and not any(rest.startswith(known) for known in _PROVEN):
                raise Judgement("done without the proof")
            return "" if side.done else "waits"

        yield run

    return opened


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────


def local_messages() -> list[bytes]:
    """A byte that says whether the MAC is made right again, then the message."""
    made = [
        local_message.LocalMessage(1, A, 1 << 20, b"n" * 32),
        local_message.LocalMessage(0, B, 0, bytes(32)),
        local_message.LocalMessage(-1, A, (1 << 64) - 1, b"n" * 32, True),
    ]
    return [bytes([how]) + local_message.seal(one, SECRET, JOB, 0, B) for one in made for how in (0, 1)]


def resealed(data: bytes, said: bytes = b"") -> bytes:
    """A message of this content that knows the secret."""
    body = data[: local_message._BODY.size].ljust(local_message._BODY.size, b"\0")
    return body + local_message._mac(body, SECRET, JOB, 0, B, said)


@contextmanager
def open_message() -> Iterator[Run]:
    honest = {one[1:] for one in local_messages()}

    def run(data: bytes) -> str:
        knows = bool(data) and data[0] & 1
        sent = resealed(data[1:]) if knows else data[1:]
        read = local_message.unseal(sent, SECRET, JOB, 0, B)
        if not knows and sent not in honest:
            raise Judgement(f"believed {read}")
        return ""

    yield run


# ── the store's messages ─────────────────────────────────────────────────────────────────────────────


def requests() -> list[bytes]:
    """Requests as a client frames them, one and several."""
    encode = messages.Encoder().request
    one = [
        encode(1, [], "set", ["key", b"value", None]),
        encode(2, [1], "multi_get", [["a", "b"], 300.0]),
        encode(3, [1, 2], "gather", ["name", 0, 4, b"card" * 100, 300.0]),
        encode(1 << 40, list(range(2000)), "add", ["counter", -5]),
        encode(4, [], "resume", [[1, 2, 3]]),
        encode(5, [], "ping", []),
        encode(6, [], "multi_set", [["k" * 300] * 40, [b"v" * 300] * 40]),
    ]
    return [*one, b"".join(one)]


def responses() -> list[bytes]:
    """Responses as a server frames them."""
    S, encode, pack = messages.Status, messages.encode_response, messages.pack  # noqa: N806
    one = [
        encode(1, S.reply, pack(None)),
        encode(2, S.reply, pack([b"a", b"b" * 500])),
        encode(3, S.failure, pack(["timeout", "rank 1 did not come", "See", [1, 2]])),
        encode(4, S.push, pack([["key", b"value", 4], ["gone", None, 5]])),
        encode(0, S.closing, pack("its host closed it")),
        encode(5, S.reply, pack([b"card" * 10] * 300)),
    ]
    return [*one, b"".join(one)]


def open_messages(is_server: bool) -> Any:
    """The parser of one direction, fed in one piece and byte by byte."""

    @contextmanager
    def opened() -> Iterator[Run]:
        def parse(payloads: list[bytes]) -> None:
            for payload in payloads:
                if is_server:
                    messages.split_request(payload)
                else:
                    messages.split_response(payload)

        def run(data: bytes) -> str:
            parser = messages.FrameParser(1 << 20)
            if len(data) < 300 and data[-1:] < b"@":
                for at in range(len(data)):
                    parse(parser.feed(data[at : at + 1]))
            else:
                parse(parser.feed(data))
            return "waits" if parser._inbox else ""

        yield run

    return opened


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────


def things() -> list[bytes]:
    """Objects of every kind, encoded."""
    rng = np.random.default_rng(1)
    zoo: list[Any] = [
        None,
        [1, -1, 1 << 70, 1.5, "text", b"bytes", True, {"a": [1, 2]}],
        (1, (2, ()), {3, 4}, frozenset([5]), OrderedDict(a=1)),
        {(1, 2): "tuple key", 3: None, "x": {"y": {"z": []}}},
        1 + 2j,
        [date(2024, 2, 29), datetime(2024, 1, 2, 3, 4, 5, 6, UTC), timedelta(days=-1, microseconds=5)],
        [rng.random(5).astype(np.float32), np.zeros((0, 3)), np.ones((2, 3, 4), np.complex64)],
        [np.arange(6, dtype=np.int8).reshape(2, 3), np.array(True), np.ones(3, BFLOAT16)],
        [np.float16(1.5), np.bool_(True), np.complex128(1j)],
        [np.zeros(2, dtype) for dtype in DTYPES],
    ]
    nested: Any = 1
    for _ in range(99):
        nested = [nested]
    made = [objects.encode(thing) for thing in [*zoo, zoo, nested, list(range(3000))]]
    return [*made, objects.encode([1, random.Random(1), 2], allow_pickle=True)]


def rebuilt(draw: st.DrawFn, data: bytes, corpus: Corpus) -> bytes:
    """Change the structure of an object, and make its head right again."""
    if len(data) < objects._HEAD.size:
        return raw(draw, data, corpus)
    form, size = objects._HEAD.unpack_from(data)
    structure = data[objects._HEAD.size : objects._HEAD.size + size]
    inner = draw(st.sampled_from((packed, packed, raw)))
    others = [one[objects._HEAD.size :] for one in corpus]
    structure = inner(draw, structure, others)
    blobs = data[objects._HEAD.size + size :]
    if draw(st.integers(0, 4)) == 4:
        blobs = raw(draw, blobs, corpus)
    return objects._HEAD.pack(form, len(structure)) + structure + blobs


@contextmanager
def open_objects() -> Iterator[Run]:
    def run(data: bytes) -> str:
        objects.decode(data)
        return ""

    # A peer may call an array a tensor. Torch need not be loaded for that here: it is slow, and not ours.
    torch = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield run
    finally:
        del sys.modules["torch"]
        if torch is not None:
            sys.modules["torch"] = torch


# What somebody says who knows the secret; nothing else may ever be believed.
_PROVEN = [talk[1:] for side in (0, 1) for talk in conversations(side)[:8:4]]

TARGETS = [
    Target("frame", "headers of data links", frames, open_frame, (WireError,), (raw, headers, headers), 1.5),
    Target(
        "handshake-server",
        "the handshake of who listens, in pieces",
        lambda: conversations(0),
        open_handshake(True),
        (WireError, AuthenticationError),
        (raw,),
    ),
    Target(
        "handshake-client",
        "the handshake of who dials, in pieces",
        lambda: conversations(1),
        open_handshake(False),
        (WireError, AuthenticationError),
        (raw,),
    ),
    Target(
        "local-message",
        "proofs of locality, half of them by one who knows the secret",
        local_messages,
        open_message,
        (WireError, AuthenticationError),
        (raw,),
    ),
    Target(
        "request", "requests to a store", requests, open_messages(True), (WireError,), (raw, framed(packed))
    ),
    Target(
        "response",
        "answers of a store",
        responses,
        open_messages(False),
        (WireError,),
        (raw, framed(packed)),
    ),
    Target(
        "objects",
        "what users send, without pickle",
        things,
        open_objects,
        (WireError, UsageError),
        (raw, rebuilt, rebuilt, rebuilt),
    ),
]
