"""The definition of a channel: the seams between operations (above) and connections (below).

A *channel* is the directed message path from one process to another. Its sending end is an
`Outgoing`, its receiving end an `Incoming`; an `Endpoint` is one process's set of both. Messages
are matched by `Key`, never by order of arrival, so that any number of operations share a channel.

The rules that every implementation obeys (`tests/support/conformance_channel` checks them):

1. `send` and `recv` return True when the operation is over already: `done` is then never called.
   They return False when `done` will be called once, later; never from inside `send` or `recv`.
2. From the call until it is over the buffer is borrowed; the caller keeps it alive and unchanged.
3. After `cancel(context)` has returned, no buffer of that context is touched, no `done` of it is called.
4. No payload byte travels without a place, beyond the eager budget of a (channel, context), and that of
   EAGER_SHARES contexts a channel. A stalled context delays no other. What a peer makes this process
   remember is bounded, and what a program has in flight is not (REMEMBERED).
5. The end of a peer is reported once: `Observer.lost`, or `Observer.goodbye` if it closed on purpose.
6. Everything happens on the event loop's thread; callbacks may call any method again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from aiodist.base.errors import GroupBroken, Tampered

FRAGMENT = 256 * 1024
"""Bytes of the largest piece that a `Fold` is given, and in which a sealed message travels. Others travel in
pieces of up to `net.wire.frame.PAYLOAD_LIMIT`."""

EAGER_MESSAGE = 8 * 1024
"""Bytes of the largest message that may travel before its receive is posted."""

EAGER_SHARES = 16
"""Contexts whose eager budgets one channel may have spent at once. Beyond that its messages wait for their
receives: a peer may name any number of contexts, also some that this process never makes."""

REMEMBERED = 4096
"""Offers, and READYs, that one end of a channel remembers of what the other says before it is asked for. What
comes beyond is forgotten, and said again when it is asked for; so a program may have any number of operations
in flight, and a peer's inventions cost no more memory than this."""

CONTROL_MESSAGE = 64 * 1024
"""Bytes of the largest message of a `ControlLink`."""

Done = Callable[[], None]
Route = Literal["tcp", "shm"]


class Key(NamedTuple):
    """The name of one message of a channel. At most one send and one receive may be in flight under a key.

    Args:
        context: 64 bits that name a group at an epoch.
        stream: 0 for collectives, 1 + tag for point-to-point messages (32 bits).
        seq: number of the operation in the group, or of the message in its stream (64 bits).
        part: which message of the operation: its round (32 bits).
    """

    context: int
    stream: int
    seq: int
    part: int


@dataclass(slots=True, eq=False)
class Into:
    """A sink in memory.

    Args:
        view: writable, contiguous, format 'B', of exactly the message's size. Its contents are
            undefined until the receive is done.
    """

    view: memoryview


@dataclass(slots=True, eq=False)
class Fold:
    """A sink that is a function, which is given each fragment in order of offset as it arrives.

    Args:
        fold: called as `fold(fragment, offset)`. The fragment is read-only by contract, at most FRAGMENT
            bytes, a multiple of 16 bytes unless it is the last, and valid during the call alone (it may
            be a buffer that is used again, or a peer's mapped memory). It must not raise.
            A message of 0 bytes makes no call.
    """

    fold: Callable[[memoryview, int], None]


Sink = Into | Fold


class Handled(enum.IntEnum):
    """The answer of an `EagerHandler`."""

    NO = 0  # it is matched by the channel
    NOW = 1  # its bytes are where they belong
    KEPT = 2  # until `Incoming.let_go`


EagerHandler = Callable[[int, int, int, bytes, memoryview], int]
"""Takes eager messages of one context before the channel matches them, but those of stream 0: called with the
rank, the stream, the number, the signature and the bytes, which are valid during the call only."""


class Observer(Protocol):
    """The receiver of news from peers. One for all channels of an endpoint.

    Called from the loop, never from inside a method of a channel or endpoint that the observer's
    owner called; every method may call channels again (`arrived` may well post the receive, or cancel).
    """

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Note a message from `rank`, or the offer of one. Called once a message, before it is matched and
        before any of its bytes reach a sink. Not called for what an `EagerHandler` took, nor for what was
        offered without being remembered, until it is asked for (`crowded`).

        A message whose `nbytes` differs from the posted receive's is not delivered: the receive stays
        pending, so that an observer that compares signatures can say who disagreed.
        """

    def lost(self, rank: int, cause: str) -> None:
        """Note that a connection with `rank` failed, or ended without goodbye. At most once a rank."""

    def crowded(self, rank: int) -> None:
        """Note that `rank` offers more than is remembered: from now on, a message of it that is waited for
        without a posted receive must be asked for (`Incoming.ask`). At most once a rank."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Note that data of `rank` was altered on the path. That channel carries nothing any more, and `rank`
        was told so; nothing is known against it."""

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """Note that this process lacks what a connection with `rank` takes (None: with any), descriptors say:
        no fault of the rank's, and no messages pass. Instead of `lost`, but that may follow."""

    def goodbye(self, rank: int) -> None:
        """Note that `rank` closed its endpoint on purpose; all it sent has arrived. At most once a rank,
        instead of `lost`."""

    def refuses(self, rank: int) -> None:
        """Note that the channel to `rank` has ended: what it had taken was told before, and of nothing else
        that was sent will `done` be called. Perhaps more than once."""
