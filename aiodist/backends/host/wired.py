"""A collective over channels: the executor of schedules.

Round by round: post receives (also of later rounds, see `schedules.early`), start the round's sends, and go
on when all that belongs to the round is over. Everything runs in callbacks of the loop, so that the first
round is under way when the user's call returns (law 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from aiodist.backends.arrays.kernels import copy_cost_ns, cost_ns, reduce_into
from aiodist.backends.base import Array, Operation, as_bytes
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.chunks import Chunks
from aiodist.backends.host.layout import Layout, Receiving, Sending
from aiodist.observe.recorder.layout import ARRIVED, FIRST
from aiodist.transport import Fold, Incoming, Into, Key, Outgoing


class Collective:
    """One running collective on one rank.

    Args:
        group: its channels, and what its operations share.
        operation: what to do.
        chunks: its memory.
        layout: by which rounds.
        ended: called when it has ended well.

    Attributes:
        channels: those of the present round.
        idle: nothing here waits for them: it has ended, or must go no further.
    """

    __slots__ = (
        "_chunks",
        "_due",
        "_ended",
        "_group",
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

    def __init__(
        self,
        group: Channels,
        operation: Operation,
        chunks: Chunks,
        layout: Layout,
        ended: Callable[[Collective], None],
    ) -> None:
        self.operation = operation
        self.channels: list[Incoming | Outgoing] = []
        self.idle = False
        self._group = group
        self._ended = ended
        self._chunks = chunks
        self._layout = layout
        self._memory, self._sent_memory = as_bytes(chunks.target), as_bytes(chunks.source)
        self._reduce = operation.call.combine
        self._sealed = group.seals(operation)
        self._round = -1
        self._waiting = 0  # sends and receives of the present round that are not over
        self._due = layout.due.copy()  # by round: its receives that are not over

    def start(self) -> None:
        """Begin: the first round is under way when this returns, unless a large copy has to come first."""
        cost = self._chunks.fill_ns()
        if not cost or self._group.off_loop(cost, self._chunks.fill, self._go_on):
            self._advance()

    def halt(self) -> None:
        """Make no further progress."""
        self.idle = True

    def expected(self, peer: int, number: int) -> int | None:
        """Bytes of the message from `peer` in round `number`; None if there is none."""
        return self._layout.expected(peer, number)

    def arriving(self, number: int) -> None:
        """Note that a message of a round has begun to come, or is offered."""
        if number == self._layout.heard and number == self._round and self._layout.due[number] == 1:
            self.operation.happened(ARRIVED)

    def poll(self) -> None:
        """Bring it on while it is awaited (`work.Driver`)."""
        self._group.resources.poller.until(self._poll_once)

    def _poll_once(self) -> bool:
        """Look once at what it waits for → whether it waits for nothing any more."""
        for channel in self.channels:
            channel.poll()
        return self.idle or not self.channels

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> None:
        rounds = self._layout.rounds
        group = self._group
        while not self.idle:
            number = self._round = self._round + 1
            if number == self._layout.heard + 1:
                self.operation.happened(ARRIVED)
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
                    channel = group.outgoing(peer)
                    signature = self.operation.call.signature
                    if not channel.send(self._key(number), signature, data, self._over, self._sealed):
                        self._waiting += 1
                        channels.append(channel)
            self._waiting -= 1
            if self._waiting:
                channels += [group.incoming(peer) for peer in self._layout.sources[number]]
                return
        if self.idle:
            return
        self.channels = []
        cost = self._chunks.empty_ns()
        if (not cost or self._group.off_loop(cost, self._chunks.empty, self._complete)) and not self.idle:
            self._complete()

    def _complete(self) -> None:
        if not self.idle:
            self.idle = True
            self._ended(self)

    def _over(self) -> None:
        """Note that a send of the present round, or a receive, is over."""
        self._waiting -= 1
        if not self._waiting:
            self._go_on()

    def _received(self, number: int) -> None:
        """Note that a receive of this round is over: perhaps before the round is entered."""
        self.operation.happened(FIRST)
        self._due[number] -= 1
        if number == self._round:
            self._over()

    def _go_on(self) -> None:
        """Begin the next round from a callback, where nobody else would see an error."""
        self._group.guard(self._advance)

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
        if receiving.slow or len(ranges) > 1:
            return self._receive_apart(receiving, done)
        low, high = ranges[0]
        if receiving.reduces:
            buffer = self._chunks.target
            part = buffer[low // buffer.itemsize : high // buffer.itemsize]
            sink: Into | Fold = Fold(self._folder(part, receiving.left))
        else:
            sink = Into(self._memory[low:high])
        channel = self._group.incoming(receiving.peer)
        return channel.recv(self._key(receiving.number), receiving.nbytes, sink, done)

    def _receive_apart(self, receiving: Receiving, done: Callable[[], None]) -> bool:
        """Receive into memory of our own, then put or reduce it where it belongs → whether all that is over.

        For chunks that wrap around the buffer's end (small messages alone), and for a dtype whose reduction
        would hold the loop (float16): a thread does that, when all is here.
        """
        buffer, nbytes = self._chunks.target, receiving.nbytes
        itemsize = buffer.itemsize
        op = self._reduce if receiving.reduces else None
        scratch = np.empty(nbytes // itemsize, buffer.dtype)

        def deal() -> None:
            offset = 0
            for low, high in receiving.ranges:
                part = buffer[low // itemsize : high // itemsize]
                theirs = scratch[offset : offset + part.size]
                offset += part.size
                if op is None:
                    part[...] = theirs
                else:
                    reduce_into(part, theirs, op, src_left=receiving.left)

        cost = copy_cost_ns(nbytes) if op is None else cost_ns(nbytes, buffer.dtype, op)

        def landed() -> None:
            if not self.idle:
                done()

        def arrived() -> None:
            if not self.idle and self._group.off_loop(cost, deal, landed):
                landed()

        channel = self._group.incoming(receiving.peer)
        if channel.recv(self._key(receiving.number), nbytes, Into(as_bytes(scratch)), arrived):
            return self._group.off_loop(cost, deal, landed)
        return False

    def _folder(self, part: Array, left: bool) -> Callable[[memoryview, int], None]:
        reduce = self._reduce
        assert reduce is not None
        dtype, itemsize = part.dtype, part.itemsize

        def fold(fragment: memoryview, offset: int) -> None:
            theirs = np.frombuffer(fragment, np.uint8).view(dtype)
            start = offset // itemsize
            reduce_into(part[start : start + theirs.size], theirs, reduce, src_left=left)

        return fold

    def _key(self, number: int) -> Key:
        return Key(self._group.context, 0, self.operation.call.seq, number)
