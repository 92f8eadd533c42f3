"""Point-to-point matching: by source and tag in order, or from any source.

Message k from a to b with a tag is the k-th send there and the k-th receive here. A receive from a known
source claims its number when it is posted, so that its memory is ready before the message comes. A
receive from any source, or of any size, can claim only what has arrived; what is posted behind it waits
in its queue, so that among receives which could take a message the first posted gets it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from aiodist.backends.base import Operation, as_bytes
from aiodist.backends.buffers import buffers
from aiodist.backends.host.channels import Channels
from aiodist.transport import Into, Key
from aiodist.types import Call, Kind, agree

ANY = -1


_NOTHING: Mapping[tuple[int, int], Arrival] = {}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that came, or was offered, before a receive claimed it. `order` counts them."""

    order: int
    source: int
    number: int
    signature: bytes
    nbytes: int


class Messages:
    """The point-to-point side of one group on one rank. Ranks are group ranks.

    Args:
        channels: of the group.
    """

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._claimed: dict[tuple[int, int], int] = {}
        self._posted: dict[tuple[int, int, int], Operation] = {}
        self._queues: dict[int, deque[Operation]] = {}
        self._arrivals: dict[int, dict[tuple[int, int], Arrival]] = {}  # tag → source, number → what came
        self._came = itertools.count()
        self._dead = False

    def send(self, operation: Operation) -> None:
        """Start a send."""
        channels = self._channels
        peer, tag = operation.peer, operation.tag
        number = operation.call.seq
        made = buffers(operation, channels.rank, channels.size)
        (part,) = made.send
        signature = _signature(operation, number)

        def go() -> None:
            channel = channels.outgoing(peer)
            key = Key(channels.context, 1 + tag, number, 0)
            if channel.send(key, signature, as_bytes(part), operation.succeed, operation.sealed):
                operation.succeed()

        # Staging a large strided tensor takes a thread; the number is taken, so order is kept.
        self._run(made.fill_ns(), made.fill, go)

    def recv(self, operation: Operation) -> None:
        """Post a receive."""
        if not self._serve(operation, blocked=operation.tag in self._queues):
            self._queues.setdefault(operation.tag, deque()).append(operation)
            if self._channels.crowded:
                self._ask(operation.tag, {operation.peer})

    def arrived(self, source: int, tag: int, number: int, signature: bytes, nbytes: int) -> None:
        """Take a message that came in or was offered."""
        operation = self._posted.get((source, tag, number))
        if operation is not None:
            self._check(operation, source, number, signature)
            return
        arrivals = self._arrivals.setdefault(tag, {})
        arrivals.setdefault((source, number), Arrival(next(self._came), source, number, signature, nbytes))
        if number == self._claimed.get((source, tag), 0):  # what overtook another waits for its turn
            self._match(source, tag)

    def halt(self) -> None:
        """Make no further progress."""
        self._dead = True

    def forget(self) -> None:
        """Let go of what waits: the group has broken, and no buffer is touched any more."""
        self._posted.clear()
        self._queues.clear()
        self._arrivals.clear()

    def waits_for(self, source: int) -> Operation | None:
        """A receive that waits for a message from `source` that has not begun to arrive, or None."""
        for (peer, _tag, _number), operation in self._posted.items():
            if peer == source:
                return operation
        for queue in self._queues.values():
            for operation in queue:
                if operation.peer == source:
                    return operation
        return None

    # ── matching ─────────────────────────────────────────────────────────────────────────────────────

    # What is in a queue has been tried with all that has come, so a look at what is new is enough. That keeps
    # the cost of each receive and arrival the same, however many others wait.

    def _serve(self, operation: Operation, blocked: bool) -> bool:
        """Let a receive have what has come for it, or post it where only one source can serve it.

        Args:
            operation: the receive, which is in no queue.
            blocked: it comes behind another that only an arrival can serve.

        Returns:
            Whether that could be.
        """
        arrival = self._first(operation.peer, operation.tag)
        if arrival is not None:
            arrivals = self._arrivals[operation.tag]
            del arrivals[arrival.source, arrival.number]
            if not arrivals:
                del self._arrivals[operation.tag]
            self._claim(operation, arrival.source, arrival)
        elif operation.peer != ANY and operation.target is not None and not blocked:
            self._claim(operation, operation.peer, None)
        else:
            return False
        return True

    def _match(self, source: int, tag: int) -> None:
        """Let receives have what has come from one source, in order."""
        # What is served may bring the next arrival right here, so nothing of the queues is kept over it.
        while not self._dead and (queue := self._queues.get(tag)) and self._next(source, tag) is not None:
            at = next((i for i, operation in enumerate(queue) if operation.peer in (ANY, source)), None)
            if at is None:
                break
            self._serve(self._take(tag, at), blocked=True)
            # One that disagrees with its message has broken the group by now.
            while not self._dead and tag in self._queues:
                operation = self._take(tag, 0)
                if not self._serve(operation, blocked=False):
                    self._queues.setdefault(tag, deque()).appendleft(operation)
                    break
        if self._channels.crowded and tag in self._queues:
            self._ask(tag, {operation.peer for operation in self._queues[tag]})

    def _take(self, tag: int, at: int) -> Operation:
        """Take a receive out of its queue, which goes with its last one: there may be any number of tags."""
        queue = self._queues[tag]
        operation = queue[at]
        del queue[at]
        if not queue:
            del self._queues[tag]
        return operation

    def ask(self) -> None:
        """Have what is waited for offered again: some peers offered more than is remembered."""
        for tag, queue in self._queues.items():
            self._ask(tag, {operation.peer for operation in queue})

    def _ask(self, tag: int, waiting: set[int]) -> None:
        channels = self._channels
        for source in channels.crowded if ANY in waiting else channels.crowded & waiting:
            number = self._claimed.get((source, tag), 0)
            channels.incoming(source).ask(Key(channels.context, 1 + tag, number, 0))

    def _next(self, source: int, tag: int) -> Arrival | None:
        """The arrival from a source that is the next which a receive may claim."""
        return self._arrivals.get(tag, _NOTHING).get((source, self._claimed.get((source, tag), 0)))

    def _first(self, peer: int, tag: int) -> Arrival | None:
        """The arrival that a receive claims now.

        One that overtook another (which is being staged in the sender's thread) waits for its turn. However
        many a peer has sent, this takes a look at each source at most.
        """
        if peer != ANY:
            return self._next(peer, tag)
        arrivals, claimed = self._arrivals.get(tag, _NOTHING), self._claimed
        if len(arrivals) <= self._channels.size:
            return next((a for a in arrivals.values() if a.number == claimed.get((a.source, tag), 0)), None)
        heads = (self._next(source, tag) for source in range(self._channels.size))
        return min((head for head in heads if head is not None), key=_order, default=None)

    def _claim(self, operation: Operation, source: int, arrival: Arrival | None) -> None:
        channels = self._channels
        tag = operation.tag
        number = self._claimed.get((source, tag), 0)
        self._claimed[source, tag] = number + 1
        if operation.target is None:  # of a size that the message tells: its bytes are the result
            assert arrival is not None
            try:
                operation.target = np.empty(arrival.nbytes, np.uint8)
            except MemoryError as error:  # so large a message was only offered: it may be a lie
                channels.failed(error)
                return
            operation.result = (source, operation.target)
        else:
            operation.result = operation.senders[source]
        if arrival is not None and not self._check(operation, source, number, arrival.signature):
            return
        made = buffers(operation, channels.rank, channels.size)
        (part,) = made.recv
        posted = (source, tag, number)
        self._posted[posted] = operation

        def received() -> None:
            self._posted.pop(posted, None)
            self._run(made.empty_ns(), made.empty, operation.succeed)

        key = Key(channels.context, 1 + tag, number, 0)
        if channels.incoming(source).recv(key, part.nbytes, Into(as_bytes(part)), received):
            received()

    def _check(self, operation: Operation, source: int, number: int, theirs: bytes) -> bool:
        mine = _signature(operation, number)
        if agree(mine, theirs):
            return True
        self._channels.unfit(source, mine, theirs)
        return False

    def _run(self, cost: float, copies: Callable[[], None], then: Callable[[], None]) -> None:
        def done() -> None:
            if not self._dead:
                then()

        if not cost or self._channels.off_loop(cost, copies, done):
            done()


def _order(arrival: Arrival) -> int:
    return arrival.order


def _signature(operation: Operation, number: int) -> bytes:
    """The signature of a message, the same on both sides: its number, dtype and element count."""
    array = operation.source if operation.source is not None else operation.target
    assert isinstance(array, np.ndarray)
    return Call(Kind.send, number, array.dtype, (array.size,)).signature
