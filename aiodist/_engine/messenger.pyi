"""The way of small messages between ranks: they are sent, and received by what waits for them.

`Messenger` sends what can leave at once, and begins receives. `Inbox` is where messages that come find the
receives that wait for them, `Receive` is one that waits, and `deliver` takes the messages out of a ring. What
they cannot do goes by Python: `backends/host/messages.py` matches all other messages, and has the tables in
which both look; `transport/sending.py` and `receiving.py` count the bytes, and have the counters.
"""

from collections.abc import Callable, Collection
from typing import Any, Self, final

import numpy as np
from typing_extensions import disjoint_base

from aiodist._engine.handle import Driver, Site
from aiodist._engine.ring import Consumer
from aiodist._engine.slots import Memory

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@disjoint_base
class SendAccount:
    """The counts of a channel's sending end: the base of `transport.Outgoing`, which explains them."""

    link: Any
    over: bool
    closing: bool
    budget: int
    budgets: int
    spent_all: int
    spent: dict[int, int]
    offers: list[Any]

@disjoint_base
class ReceiveAccount:
    """The counts of a channel's receiving end: the base of `transport.Incoming`, which explains them."""

    link: Any
    rank: int
    budgets: int
    batch: int
    spent_all: int
    owed_all: int
    owed: dict[int, int]
    questions: set[Any]
    takers: Any

@final
class PreparedMessage(Site):
    """What messages that are alike share.

    Args:
        call: what both sides agree on, but for its number.
        sort: of such calls, in the recorder.
        channel: to the receiver, or from the sender; None: of a receive from any source.
        header: of their frames, but for the number.
        stream: the key of their count.
        peer, tag: the other side, and the tag.
        sealed: whether their bytes have to be authenticated.
    """

    def __new__(
        cls,
        call: Any,
        sort: Any,
        channel: Any,
        header: bytes,
        stream: Any,
        peer: int,
        tag: int,
        *,
        sealed: bool,
    ) -> Self: ...

@final
class Receive(Driver):
    """A receive of the next small message of its source and tag, which has matched none yet.

    As long as it is the only one of its tag that waits, nothing has to be remembered of it but itself: no
    match, no place in the channel, no entry in flight.

    Args:
        inbox: of its group.
        work: the user's handle, which holds it as its driver.
        source: group rank of the sender; -1: any.
        tag: of the message.
        target: where it goes, contiguous, and held; None: into bytes.
        like: what such messages share; None: bytes, of any number.
        convert: makes the Work's result of (sender, bytes).
        post: posts it like any other.

    Attributes:
        work, source, tag, target, convert, post: as given.
        operation: once it is posted.
        got: group rank of the sender of the message that it has; -1: none yet.
        number, place: of that message, and where it is.
    """

    work: Any
    source: int
    tag: int
    target: Any
    convert: Any
    post: Callable[[Any], None]
    operation: Any
    got: int
    number: int
    place: Any
    def __init__(
        self,
        inbox: Inbox,
        work: Any,
        source: int,
        tag: int,
        target: np.ndarray[Any, Any] | None,
        like: PreparedMessage | None,
        convert: Any,
        post: Callable[[Any], None],
    ) -> None: ...
    def fits(self, signature: bytes, nbytes: int, number: int) -> bool:
        """Whether a message of so many bytes is such as it receives."""

    def receive(self, source: int, number: int, data: bytes | memoryview) -> None:
        """Take a message that fits, and end well."""

    def poll(self) -> None:
        """Look for what has come, in the awaiting task's turn; see `work.Driver`."""

    def poll_once(self) -> bool:
        """Look once at a channel of sockets → whether there is nothing to look for any more."""

@final
class Inbox:
    """The messages that come for one group: its `EagerHandler`, and the tables in which `deliver` looks.

    Args:
        messages: of the group.
        sources: the group rank of each member's global rank.
        of_bytes: the signature of a message of so many bytes with a number.
        complete: ends a Work with (sender, bytes), by what converts them.
        poller: polls channels of sockets.
        hub: this process's side of shared memory, or None.
    """

    def __init__(
        self,
        messages: Any,
        sources: dict[int, int],
        of_bytes: Callable[[int, int], bytes],
        complete: Callable[[Any, Any, Any], None],
        poller: Any,
        hub: Any,
    ) -> None: ...
    def __call__(self, rank: int, stream: int, number: int, signature: bytes, data: memoryview) -> int: ...

def deliver(ring: Consumer, channel: ReceiveAccount, most: int) -> int:
    """Give receives that wait for them the messages at the beginning of a ring, up to so many bytes.

    It stops before the first record that is anything else.

    Args:
        channel: from the ring's producer (`transport.Incoming`).

    Returns:
        The bytes that were moved.
    """

@final
class Messenger:
    """The sender and receiver of one group's small messages. It runs in the loop's thread.

    A call takes a number and begins, if it is a case for this; else it gives None, and nothing has happened.

    Args:
        inbox: of the group.
        messages, channels: of the group.
        issuer: what its Works have in common.
        counts: of its messages (`Numbers.counts`).
        work: the class of the handles.
        prepare: given whether it is a send, an array, a peer and a tag, what such calls share; None where
            they are no case for this.
        prepare_bytes: likewise, of bytes.
        hold: posts a receive two turns of the loop later.
        begin: posts one now.
        gone: global ranks that send nothing more.
        peers: by group rank, the segment of a member on this host; None for others.
    """

    def __init__(
        self,
        inbox: Inbox,
        messages: Any,
        channels: Any,
        issuer: Any,
        counts: dict[Any, int],
        work: type[Any],
        prepare: Callable[[bool, Any, int, int], PreparedMessage | None],
        prepare_bytes: Callable[[bool, int, int], PreparedMessage],
        hold: Callable[[Any], None],
        begin: Callable[[Any], None],
        gone: Collection[int],
        peers: list[Memory | None],
    ) -> None: ...
    def send(self, tensor: Any, dst: Any, tag: Any, held: bool) -> Any:
        """Send a tensor, if it can leave at once.

        Args:
            tensor, dst, tag: as the caller passed them, unchecked.
            held: the caller passed `async_op=True`.
        """

    def recv(self, tensor: Any, src: Any, tag: Any, held: bool) -> Any:
        """Post a receive, likewise."""

    def send_bytes(self, data: bytes, dst: int, tag: int, held: bool, depth: int = 1) -> Any:
        """Send bytes; what else the caller passes is checked.

        Args:
            depth: calls of aiodist between the program's line and this one; see `Starter.start`.
        """

    def recv_bytes(self, src: int, tag: int, held: bool, convert: Any, depth: int = 1) -> Any:
        """Post a receive of bytes, of any number; `convert` makes the result of (sender, bytes)."""
