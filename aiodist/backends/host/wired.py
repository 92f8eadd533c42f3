"""A collective over channels: the executor of schedules.

Round by round: post receives (also of later rounds, see `schedules.early`), start the round's sends, and go
on when all that belongs to the round is over. Everything runs in callbacks of the loop, so that the first
round is under way when the user's call returns (law 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from aiodist.backends.base import Array, Operation, as_bytes
from aiodist.backends.host.chunks import Chunks
from aiodist.backends.host.layout import Layout, Receiving, Sending
from aiodist.kernels import copy_cost_ns, cost_ns, reduce_into
from aiodist.transport import Fold, Incoming, Into, Key, Outgoing


class Carrier(Protocol):
    """The group's backend, as far as a collective needs it. Peers are group ranks."""

    @property
    def context(self) -> int: ...

    def outgoing(self, peer: int) -> Outgoing:
        """The channel to a member."""

    def incoming(self, peer: int) -> Incoming:
        """The channel from a member."""

    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Do a job on the operation's buffers; see `Offload.run`. The group's release is held meanwhile."""

    def drive(self, collective: Collective) -> None:
        """Bring a collective on while it is awaited."""

    def completed(self, collective: Collective) -> None:
        """Note that a collective has ended well."""

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not."""


class Collective:
    """One running collective on one rank.

    Args:
        backend: the group's, which is told when the collective has ended.
        operation: what to do.
        chunks: its memory.
        layout: by which rounds.

    Attributes:
        channels: those of the present round.
        idle: nothing here waits for them: it has ended, or must go no further.
    """

    __slots__ = (
        "_backend",
        "_chunks",
        "_due",
        "_layout",
        "_memory",
        "_reduce",
        "_round",
        "_sealed",
        "_sent_memory",
        "_waiting",
        "channels",
        "idle",
        "operation",
    )

    def __init__(self, backend: Carrier, operation: Operation, chunks: Chunks, layout: Layout) -> None:
        self.operation = operation
        self.channels: list[Incoming | Outgoing] = []
        self.idle = False
        self._backend = backend
        self._chunks = chunks
        self._layout = layout
        self._memory, self._sent_memory = as_bytes(chunks.target), as_bytes(chunks.source)
        self._reduce = operation.call.combine
        self._sealed = operation.sealed
        self._round = -1
        self._waiting = 0  # sends and receives of the present round that are not over
        self._due = layout.due.copy()  # by round: its receives that are not over

    def start(self) -> None:
        """Begin: the first round is under way when this returns, unless a large copy has to come first."""
        cost = self._chunks.fill_ns()
        if not cost or self._backend.off_loop(cost, self._chunks.fill, self._go_on):
            self._advance()

    def halt(self) -> None:
        """Make no further progress."""
        self.idle = True

    def expected(self, peer: int, number: int) -> int | None:
        """Bytes of the message from `peer` in round `number`; None if there is none."""
        return self._layout.expected(peer, number)

    def poll(self) -> None:
        """Bring it on while it is awaited (`work.Driver`)."""
        self._backend.drive(self)

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> None:
        rounds = self._layout.rounds
        backend = self._backend
        while not self.idle:
            number = self._round = self._round + 1
            if number == len(rounds):
                break
            sends, receives = rounds[number]
            # This turn counts itself: nothing ends the round before all is posted.
            self._waiting = 1 + self._due[number]
            channels: list[Incoming | Outgoing] = []
            self.channels = channels
            leaving = [(one.peer, self._outgoing_bytes(one)) for one in sends]
            for receiving in receives:
                if self._receive(receiving):
                    self._received(receiving.number)
            if not self.idle:  # or what had arrived has broken the group, and users may write to what is sent
                for peer, data in leaving:
                    channel = backend.outgoing(peer)
                    signature = self.operation.call.signature
                    if not channel.send(self._key(number), signature, data, self._over, self._sealed):
                        self._waiting += 1
                        channels.append(channel)
            self._waiting -= 1
            if self._waiting:
                channels += [backend.incoming(peer) for peer in self._layout.sources[number]]
                return
        if self.idle:
            return
        self.channels = []
        cost = self._chunks.empty_ns()
        if (not cost or self._backend.off_loop(cost, self._chunks.empty, self._complete)) and not self.idle:
            self._complete()

    def _complete(self) -> None:
        if not self.idle:
            self.idle = True
            self._backend.completed(self)

    def _over(self) -> None:
        """Note that a send of the present round, or a receive, is over."""
        self._waiting -= 1
        if not self._waiting:
            self._go_on()

    def _received(self, number: int) -> None:
        """Note that a receive of this round is over: perhaps before the round is entered."""
        self._due[number] -= 1
        if number == self._round:
            self._over()

    def _go_on(self) -> None:
        """Begin the next round from a callback, where nobody else would see an error."""
        try:
            self._advance()
        except Exception as error:
            self._backend.failed(error)

    def _outgoing_bytes(self, sending: Sending) -> memoryview:
        """The bytes that a step sends; a copy where the round also writes there (small messages alone)."""
        memory, ranges = self._sent_memory, sending.ranges
        if sending.copy:
            return memoryview(b"".join([memory[low:high] for low, high in ranges]))
        return memory[ranges[0][0] : ranges[0][1]]

    def _receive(self, receiving: Receiving) -> bool:
        """Post a receive → whether it is over."""
        ranges = receiving.ranges
        done = partial(self._received, receiving.number)
        if len(ranges) > 1:
            return self._receive_wrapped(receiving, done)
        low, high = ranges[0]
        if receiving.reduces:
            buffer = self._chunks.target
            part = buffer[low // buffer.itemsize : high // buffer.itemsize]
            if receiving.slow:
                return self._receive_slowly(part, receiving, done)
            sink: Into | Fold = Fold(self._folder(part, receiving.left))
        else:
            sink = Into(self._memory[low:high])
        channel = self._backend.incoming(receiving.peer)
        return channel.recv(self._key(receiving.number), receiving.nbytes, sink, done)

    def _receive_wrapped(self, receiving: Receiving, done: Callable[[], None]) -> bool:
        """Receive chunks that wrap around the buffer's end, by memory of our own (small messages alone)."""
        buffer, nbytes = self._chunks.target, receiving.nbytes
        scratch = np.empty(nbytes // buffer.itemsize, buffer.dtype)
        reduce = self._reduce

        def deal() -> None:
            offset = 0
            for low, high in receiving.ranges:
                part = buffer[low // buffer.itemsize : high // buffer.itemsize]
                theirs = scratch[offset : offset + part.size]
                offset += part.size
                if receiving.reduces:
                    assert reduce is not None
                    reduce_into(part, theirs, reduce, src_left=receiving.left)
                else:
                    part[...] = theirs

        cost = copy_cost_ns(nbytes)
        if receiving.reduces:
            assert reduce is not None
            cost = cost_ns(nbytes, buffer.dtype, reduce)
        return self._receive_whole(receiving, scratch, cost, deal, done)

    def _folder(self, part: Array, left: bool) -> Callable[[memoryview, int], None]:
        reduce = self._reduce
        assert reduce is not None
        dtype, itemsize = part.dtype, part.itemsize

        def fold(fragment: memoryview, offset: int) -> None:
            theirs = np.frombuffer(fragment, np.uint8).view(dtype)
            start = offset // itemsize
            reduce_into(part[start : start + theirs.size], theirs, reduce, src_left=left)

        return fold

    def _receive_slowly(self, part: Array, receiving: Receiving, done: Callable[[], None]) -> bool:
        """Receive all of a dtype whose reduction would hold the loop (float16), then reduce in a thread."""
        scratch = np.empty(part.size, part.dtype)
        reduce = self._reduce
        assert reduce is not None

        def reduce_all() -> None:
            reduce_into(part, scratch, reduce, src_left=receiving.left)

        cost = cost_ns(part.nbytes, part.dtype, reduce)
        return self._receive_whole(receiving, scratch, cost, reduce_all, done)

    def _receive_whole(
        self,
        receiving: Receiving,
        scratch: Array,
        cost: float,
        job: Callable[[], None],
        done: Callable[[], None],
    ) -> bool:
        """Receive into memory of our own, then do a job → whether both are over."""

        def landed() -> None:
            if not self.idle:
                done()

        def arrived() -> None:
            if not self.idle and self._backend.off_loop(cost, job, landed):
                landed()

        channel = self._backend.incoming(receiving.peer)
        if channel.recv(self._key(receiving.number), receiving.nbytes, Into(as_bytes(scratch)), arrived):
            return self._backend.off_loop(cost, job, landed)
        return False

    def _key(self, number: int) -> Key:
        return Key(self._backend.context, 0, self.operation.call.seq, number)
