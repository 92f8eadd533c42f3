"""The base of the channel checks: two endpoints as a pair, an observer that records, distinct contents."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TypeVar

from aiodist.base.errors import GroupBroken, Tampered
from aiodist.transport import Endpoint, Into, Key, Sink

T = TypeVar("T")


def content(key: Key, nbytes: int) -> bytes:
    """Bytes that differ between messages and from the bytes beside them."""
    seed = hashlib.blake2b(repr(key).encode(), digest_size=61).digest()  # prime: no period fits a fragment
    return (seed * (nbytes // len(seed) + 1))[:nbytes]


def signature(key: Key) -> bytes:
    """A signature that differs between messages."""
    return hashlib.blake2b(repr(key).encode(), digest_size=32).digest()


async def turn_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a state is reached that nobody reports."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


class Recorder:
    """An observer that keeps what it is told, and can be waited for."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, Key, bytes, int]] = []
        self.losses: list[tuple[int, str]] = []
        self.goodbyes: list[int] = []
        self.refusals: list[int] = []
        self.crowds: list[int] = []
        self.tamperings: list[tuple[int, Tampered]] = []
        self.failures: list[tuple[int | None, GroupBroken]] = []
        self.on_arrival: Callable[[Key], None] | None = None
        self._changed = asyncio.Event()

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Record a message that came in."""
        self._note(self.arrivals, (rank, key, signature, nbytes))
        if self.on_arrival is not None:
            self.on_arrival(key)

    def lost(self, rank: int, cause: str) -> None:
        """Record that a peer is gone."""
        self._note(self.losses, (rank, cause))

    def crowded(self, rank: int) -> None:
        """Record that a peer offers more than is remembered."""
        self._note(self.crowds, rank)

    def tampered(self, rank: int, error: Tampered) -> None:
        """Record that somebody altered what a peer sent."""
        self._note(self.tamperings, (rank, error))

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """Record that this process lacks something for a connection."""
        self._note(self.failures, (rank, error))

    def goodbye(self, rank: int) -> None:
        """Record that a peer has closed."""
        self._note(self.goodbyes, rank)

    def refuses(self, rank: int) -> None:
        """Record that a peer takes nothing more."""
        self._note(self.refusals, rank)

    def _note(self, told: list[T], what: T) -> None:
        told.append(what)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something told to this observer makes `condition` true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Pair:
    """The channel from one endpoint to another, with sends and receives as futures."""

    def __init__(self, sender: Endpoint, receiver: Endpoint) -> None:
        self.sender, self.receiver = sender, receiver
        self.at_sender, self.at_receiver = Recorder(), Recorder()
        sender.observer, receiver.observer = self.at_sender, self.at_receiver
        self.out = sender.outgoing(receiver.rank)
        self.inc = receiver.incoming(sender.rank)
        self._inside = False

    def send(self, key: Key, data: bytes | bytearray | None = None, nbytes: int = 0) -> asyncio.Future[bool]:
        """Send; the future holds what `send` returned once the send is over."""
        view = memoryview(content(key, nbytes) if data is None else data)
        return self._start(lambda done: self.out.send(key, signature(key), view, done))

    def recv(self, key: Key, nbytes: int, sink: Sink) -> asyncio.Future[bool]:
        """Receive; the future holds what `recv` returned once the receive is over."""
        return self._start(lambda done: self.inc.recv(key, nbytes, sink, done))

    async def receive(self, key: Key, nbytes: int) -> bytes:
        """Receive a message's bytes."""
        into = bytearray(nbytes)
        await self.recv(key, nbytes, Into(memoryview(into)))
        return bytes(into)

    async def passes(self, key: Key, nbytes: int) -> None:
        """Check that one message goes through whole."""
        sent = self.send(key, nbytes=nbytes)
        assert await self.receive(key, nbytes) == content(key, nbytes)
        await sent

    def _start(self, start: Callable[[Callable[[], None]], bool]) -> asyncio.Future[bool]:
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done() -> None:
            assert not self._inside, "done was called inside send or recv"
            over.set_result(False)  # InvalidStateError if it is called twice

        self._inside = True
        try:
            if start(done):
                assert not over.done(), "done was called although the call returned True"
                over.set_result(True)
        finally:
            self._inside = False
        return over
