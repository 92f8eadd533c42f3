"""Fuzzed: data links, from frames on a socket or in shared memory to receives and sends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiodist.base.errors import Tampered, WireError
from aiodist.net.wire import frame
from aiodist.net.wire.frame import HEADER, Type, pack
from aiodist.transport.base import FRAGMENT, Fold, Into, Key
from aiodist.transport.mapped import MappedLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.sending import Outgoing
from aiodist.transport.shm.heap import Heap
from aiodist.transport.stream import StreamLink
from tests.fuzz.engine import Judgement
from tests.fuzz.hand_loop import HandLoop
from tests.fuzz.mutate import headers, raw
from tests.fuzz.target import Run, Target
from tests.fuzz.targets_wire import SIGNATURE
from tests.helpers import BLOCKS_AT, shared

LIVE, RETIRED, CANCELLED = 7, 8, 9
SMALL, BIG, FOLDED, HUGE = 64, 20_000, 24_000, FRAGMENT + 4096

Open = Callable[[], Any]


class Posted:
    """Receives that are posted before anything comes, and what must hold of them afterwards."""

    def __init__(self, receiver: Incoming, huge: bool) -> None:
        self.receiver = receiver
        self.done: list[Key] = []
        self._room = bytearray(SMALL + BIG + 64)
        self._folded: dict[Key, int] = {}
        view = memoryview(self._room)
        self.into(Key(LIVE, 0, 0, 0), view[:SMALL])
        self.into(Key(LIVE, 0, 1, 0), view[SMALL : SMALL + BIG])
        self.fold(Key(LIVE, 0, 2, 0), FOLDED)
        self.into(Key(LIVE, 1, 0, 0), view[:0])
        self.into(Key(CANCELLED, 0, 0, 0), memoryview(bytearray(BIG)))
        if huge:
            self.fold(Key(LIVE, 0, 3, 0), HUGE)
        receiver.cancel(CANCELLED)
        receiver.retire(RETIRED)

    def into(self, key: Key, view: memoryview) -> None:
        """A receive into memory."""
        self.receiver.recv(key, len(view), Into(view), lambda: self.done.append(key))

    def fold(self, key: Key, nbytes: int) -> None:
        """A receive that is reduced as it comes: in order, and all of it."""
        self._folded[key] = 0

        def fold(payload: memoryview, offset: int) -> None:
            if offset != self._folded[key] or offset + len(payload) > nbytes:
                raise Judgement(f"{len(payload)} bytes at {offset} of {nbytes}, after {self._folded[key]}")
            self._folded[key] += len(payload)

        self.receiver.recv(key, nbytes, Fold(fold), lambda: self.done.append(key))

    def check(self) -> None:
        """Each is done once at most; behind the memory of the receives nothing was written."""
        if len(set(self.done)) != len(self.done):
            raise Judgement(f"done twice: {self.done}")
        if any(self._room[SMALL + BIG :]):
            raise Judgement("bytes behind the memory of a receive")
        for key in self.done:
            if self._folded.get(key, self._all(key)) != self._all(key):
                raise Judgement(f"{key} is done with {self._folded[key]} bytes")

    def _all(self, key: Key) -> int:
        return {2: FOLDED, 3: HUGE}.get(key.seq, 0) if key.stream == 0 else 0


def data(key: Key, nbytes: int, total: int, offset: int = 0) -> bytes:
    """A fragment."""
    signature = SIGNATURE if not offset else frame.NO_SIGNATURE
    header = pack(Type.DATA, *key, nbytes=nbytes, offset=offset, total=total, signature=signature)
    return header + bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)


def eager(key: Key, payload: bytes) -> bytes:
    """A small message."""
    size = len(payload)
    return pack(Type.EAGER, *key, nbytes=size, total=size, signature=SIGNATURE) + payload


def sent(huge: bool) -> list[bytes]:
    """What a sender sends: messages that are awaited, that are not, that nobody wants any more."""
    small, big, folded = Key(LIVE, 0, 0, 0), Key(LIVE, 0, 1, 0), Key(LIVE, 0, 2, 0)
    late, offered = Key(LIVE, 3, 0, 0), Key(LIVE, 3, 1, 0)
    goodbye = pack(Type.GOODBYE)
    made = [
        eager(small, bytes(SMALL)) + goodbye,
        eager(late, b"hello") + eager(Key(LIVE, 3, 2, 0), bytes(8192)) + goodbye,
        pack(Type.OFFER, *big, total=BIG, signature=SIGNATURE) + data(big, BIG, BIG) + goodbye,
        data(big, 16_000, BIG) + eager(late, b"between") + data(big, BIG - 16_000, BIG, 16_000) + goodbye,
        data(folded, 12_000, FOLDED) + data(folded, 12_000, FOLDED, 12_000) + goodbye,
        pack(Type.OFFER, *offered, total=1 << 40, signature=SIGNATURE)
        + eager(Key(LIVE, 1, 0, 0), b"")
        + goodbye,
        eager(Key(RETIRED, 0, 0, 0), b"late") + data(Key(CANCELLED, 0, 0, 0), BIG, BIG) + goodbye,
        eager(small, bytes(SMALL)) + eager(small, bytes(SMALL)) + goodbye,
        pack(Type.OFFER, *late, total=BIG, signature=SIGNATURE) * 2,
        eager(Key(99, 0, 0, 0), b"of a group that is to come") + goodbye,
    ]
    if huge:
        made.append(data(Key(LIVE, 0, 3, 0), HUGE, HUGE) + goodbye)
    return made


def mapped() -> list[bytes]:
    """The same over memory that is shared."""
    big, folded = Key(LIVE, 0, 1, 0), Key(LIVE, 0, 2, 0)

    def at(key: Key, block: int, nbytes: int, total: int, offset: int = 0) -> bytes:
        word = BLOCKS_AT + block * FRAGMENT
        return pack(
            Type.MAPPED, *key, nbytes=nbytes, offset=offset, total=total, word=word, signature=SIGNATURE
        )

    goodbye, blocks = pack(Type.GOODBYE), pack(Type.BLOCKS, word=BLOCKS_AT)
    return [
        blocks + at(big, 0, 16_000, BIG) + at(big, 7, 4000, BIG, 16_000) + goodbye,
        blocks + at(folded, 3, FOLDED, FOLDED) + eager(Key(LIVE, 3, 0, 0), b"hello") + goodbye,
        *sent(False)[:5],
    ]


@contextmanager
def open_receiver() -> Iterator[Run]:
    """The matching alone, without a socket."""

    class Quiet:
        def __init__(self) -> None:
            self.said: list[frame.Frame] = []

        def start(self, user: object) -> None:
            pass

        def post(self, header: bytes, payload: object = None) -> None:
            self.said.append(frame.parse(header))

        def divert(self, place: memoryview) -> None:
            pass

        def kill(self) -> None:
            pass

    def run(sequence: bytes) -> str:
        receiver = Incoming(1, _arrived, _ended)
        posted = Posted(receiver, False)
        receiver.attach(Quiet())  # type: ignore[arg-type]
        at = 0
        while len(sequence) - at >= HEADER:
            found = frame.parse(sequence, at)
            size = frame.payload_bytes(found)
            at += HEADER
            if len(sequence) - at < size:
                return "short"
            if found.type == Type.GOODBYE:
                break
            payload = memoryview(sequence)[at : at + size]
            at += size
            if size <= 8192:
                receiver.received(found, payload)
            else:
                place, part = receiver.place(found, 0), 0
                while part < size:
                    step = min(len(place), size - part)
                    place[:step] = payload[part : part + step]
                    receiver.placed(found, part, step)
                    part += step
                    if part < size:
                        place = receiver.place(found, part)
            posted.check()
        # What is left can still be used: by a receive that comes late, and by the next group. There are no
        # receives any more in a context that was cancelled.
        for key, stored in list(receiver._stored.items()):
            if (
                stored.data is not None
                and key.context != CANCELLED
                and key not in receiver._posted
                and not receiver.recv(
                    key, stored.nbytes, Into(memoryview(bytearray(stored.nbytes))), lambda: None
                )
            ):
                raise Judgement(f"{key} is here, and is not received")
        receiver.retire(LIVE)
        if any(key.context == LIVE for table in (receiver._stored, receiver._posted) for key in table):
            raise Judgement("something is left of a retired group")
        return ""

    yield run


def _arrived(rank: int, key: Key, signature: bytes, nbytes: int) -> None:
    pass


def _ended(rank: int, goodbye: bool, cause: str | Tampered) -> None:
    pass


class Ends:
    """A pair of sockets and how the near end's link ended."""

    def __init__(self, tcp: bool = False) -> None:
        self.loop = HandLoop()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.ends: list[tuple[bool, str | Tampered]] = []

    def on_end(self, rank: int, goodbye: bool, cause: str | Tampered) -> None:
        """As a channel's owner."""
        self.ends.append((goodbye, cause))

    def feed(self, sequence: bytes) -> None:
        """Write it in pieces, as fast as the link reads; then hang up."""
        step = 1 + (len(sequence) * 7 & 0xFFF) if len(sequence) & 1 else 65_536
        left = memoryview(sequence)
        for _ in range(2000):
            if not left:
                break
            try:
                left = left[self.far.send(left[:step]) :]
            except BlockingIOError:
                pass
            except OSError:
                break  # it was closed: that is an answer
            self.loop.turn()
            if self.ends:
                break
        self.drain()
        self.far.close()
        for _ in range(4):
            self.loop.turn()
        self.loop.run_until_idle()

    def drain(self) -> None:
        """Read what the link says."""
        try:
            while self.far.recv(65_536):
                pass
        except OSError:
            pass

    def word(self) -> str:
        """How it ended; exactly once, and in words."""
        if len(self.ends) != 1:
            raise Judgement(f"ended {len(self.ends)} times: {self.ends}")
        goodbye, cause = self.ends[0]
        if isinstance(cause, Tampered):
            return "tampered"
        if not cause.isprintable() or len(cause) > 500:
            raise Judgement(f"words that cannot be shown: {cause!r:.200}")
        return "" if goodbye else "protocol error" if cause.startswith("protocol error") else "lost"

    def close(self) -> None:
        """Both."""
        self.near.close()
        self.far.close()


@contextmanager
def open_stream() -> Iterator[Run]:
    def run(sequence: bytes) -> str:
        ends = Ends()
        try:
            receiver = Incoming(1, _arrived, ends.on_end)
            posted = Posted(receiver, True)
            leftover = sequence[: len(sequence) % 5 * 40]
            link = StreamLink(ends.loop, ends.near, leftover)  # type: ignore[arg-type]
            receiver.attach(link)
            ends.feed(sequence[len(leftover) :])
            posted.check()
            receiver.kill()
            return ends.word()
        finally:
            ends.close()

    yield run


@contextmanager
def open_mapped() -> Iterator[Run]:
    segment, peer = shared()

    def run(sequence: bytes) -> str:
        ends = Ends()
        try:
            receiver = Incoming(1, _arrived, ends.on_end)
            posted = Posted(receiver, False)
            link = MappedLink(ends.loop, ends.near, segment, peer, dialed=False)  # type: ignore[arg-type]
            receiver.attach(link)
            ends.feed(sequence)
            posted.check()
            receiver.kill()
            return ends.word()
        finally:
            ends.close()

    try:
        yield run
    finally:
        peer.close()
        segment.close()


# ── the sending end ──────────────────────────────────────────────────────────────────────────────────

_PAYLOAD = memoryview(bytes(BIG))


def asked() -> list[bytes]:
    """What a receiver says."""
    one, two = Key(LIVE, 0, 0, 0), Key(LIVE, 0, 1, 0)
    goodbye = pack(Type.GOODBYE)
    return [
        pack(Type.READY, *one, total=BIG) + pack(Type.READY, *two, total=BIG) + goodbye,
        pack(Type.CREDIT, LIVE, word=16_384) * 3 + goodbye,
        pack(Type.READY, *Key(LIVE, 5, 0, 0), total=BIG) + pack(Type.READY, *one, total=5) + goodbye,
        pack(Type.READY, *one, total=BIG) * 2 + goodbye,
        pack(Type.READY, *one, total=BIG) + pack(Type.RELEASE, word=1) + goodbye,
        pack(Type.READY, *Key(CANCELLED, 0, 0, 0), total=BIG) + goodbye,
    ]


def open_sender(mapped: bool) -> Open:
    """A channel with messages that wait, over a plain link or one over shared memory."""

    @contextmanager
    def opened() -> Iterator[Run]:
        memory = shared() if mapped else ()

        def run(sequence: bytes) -> str:
            ends = Ends()
            finished: list[int] = []
            if memory:  # what the link before has not given back
                memory[0].heap = Heap(BLOCKS_AT, len(memory[0].view))
            try:
                sender = Outgoing(1, lambda _rank: None, ends.on_end)
                link = (
                    MappedLink(ends.loop, ends.near, *memory, dialed=True)  # type: ignore[arg-type]
                    if memory
                    else StreamLink(ends.loop, ends.near)  # type: ignore[arg-type]
                )
                sender.attach(link)
                for number in range(3):
                    sender.send(Key(LIVE, 0, number, 0), SIGNATURE, _PAYLOAD, lambda: finished.append(1))
                sender.send(Key(CANCELLED, 0, 0, 0), SIGNATURE, _PAYLOAD, lambda: finished.append(1))
                sender.send(Key(LIVE, 1, 0, 0), SIGNATURE, _PAYLOAD[:100], lambda: finished.append(1))
                sender.cancel(CANCELLED)
                ends.loop.turn()
                ends.drain()
                ends.feed(sequence)
                if len(finished) > 3:
                    raise Judgement("a message was sent twice")
                if len(sender._ready) + len(sender.spent) > len(sequence) // HEADER + 1:
                    raise Judgement("more is kept than was said")
                sender.kill()
                return ends.word()
            finally:
                ends.close()

        try:
            yield run
        finally:
            for one in memory:
                one.close()

    return opened


TARGETS = [
    Target(
        "receiver",
        "frames of a sender, without a socket",
        lambda: sent(False),
        open_receiver,
        (WireError,),
        (raw, headers, headers),
        0.5,
    ),
    Target(
        "stream",
        "frames of a sender, over a socket",
        lambda: sent(True),
        open_stream,
        (),
        (raw, headers, headers),
        0.4,
    ),
    Target(
        "mapped",
        "frames of a sender that shares its memory",
        mapped,
        open_mapped,
        (),
        (raw, headers, headers),
        0.2,
    ),
    Target("sender", "frames of a receiver", asked, open_sender(False), (), (raw, headers, headers), 0.2),
    Target(
        "mapped-sender",
        "frames of a receiver that reads this memory",
        asked,
        open_sender(True),
        (),
        (raw, headers, headers),
        0.1,
    ),
]
