"""The demands on a connection on which `sending` and `receiving` can build a channel.

A link moves frames: ordered, reliable, one connection between two processes. Matching, eager limits and
READY are not its business. The process that sends messages dials; frames of the receiver travel back
on the same link.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiodist import _engine
from aiodist.base.errors import Tampered
from aiodist.net.wire.frame import NO_SIGNATURE, Frame, pack
from aiodist.transport.base import FRAGMENT, Done, Key

BURST = 1 << 20
"""Bytes that a link moves in one direction before it lets the loop turn."""

NO_GOODBYE = "connection ended without goodbye"
"""The cause of a loss that the other side gave no reason for: its process is gone."""


class Handed(enum.IntEnum):
    """The state of bytes that were given to a link."""

    BORROWED = 0  # until `LinkUser.writable`, or `keep`
    TAKEN = 1
    LENT = 2  # until `LinkUser.returned`, or `withdraw`


@dataclass(slots=True, eq=False)
class Message:
    """A message on its way out.

    Args:
        key, signature, data, done, sealed: see `Outgoing.send`.

    Attributes:
        sent: bytes that were given to the link.
        lent: fragments of it that are lent.
        address: of its bytes, once it was needed.
        offered: the receiver knows of it.
    """

    key: Key
    signature: bytes
    data: memoryview
    done: Done
    sealed: bool = False
    sent: int = 0
    offered: bool = False
    lent: int = 0
    address: int = 0

    def header(self, kind: int, start: int, stop: int, word: int = 0) -> bytes:
        """The header of a frame that bears the bytes from `start` to `stop`."""
        signature = NO_SIGNATURE if start else self.signature
        nbytes, total = stop - start, len(self.data)
        return pack(kind, *self.key, nbytes=nbytes, offset=start, total=total, word=word, signature=signature)


class Waiting(Protocol):
    """Something that waits for words which peers write in shared memory: a group, or a link's ring."""

    def progress(self) -> bool:
        """Go on with what is there → whether more may come."""

    def failed(self, error: Exception) -> None:
        """Give up: something raised that must not."""


class Waking(Protocol):
    """The process's part in sleeping and waking where words in shared memory say that something has come."""

    def knows(self, rank: int) -> bool:
        """Whether a rank is a local peer that can be woken, and wakes this process."""

    def watch(self, waiting: Waiting) -> None:
        """Have a reader look before the loop sleeps, and whenever it is woken."""

    def awake(self) -> None:
        """Have nobody wake this process until the loop's turn ends: the caller polls."""

    def wake(self, rank: int) -> None:
        """Wake the loop of a local peer, if it sleeps: something was written that it may wait for."""


class LinkUser(Protocol):
    """The user of a link, called from the loop; any method of the link may be called meanwhile."""

    def received(self, frame: Frame, payload: memoryview) -> None:
        """Take a whole frame. The payload is valid during the call only; MAPPED frames arrive as DATA."""

    def eager(self, record: memoryview) -> int:
        """Take an EAGER frame with its payload, and perhaps more, where it lies → its payload's bytes. The
        record is valid during the call only.

        Raises:
            WireError: it is none, or not all there.
        """

    def place(self, frame: Frame, at: int) -> memoryview:
        """Memory for the payload of a DATA frame from byte `at` on: for all of the rest, or at least
        FRAGMENT bytes. It is about to arrive piece by piece."""

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        """Note that so much is in the memory that `place` gave (or in what `divert` put in its stead)."""

    def writable(self) -> None:
        """Write on: `room` is True again, and what was borrowed by `write` is free."""

    def returned(self, message: Message) -> None:
        """Note that a fragment of a message is lent no more."""

    def ended(self, goodbye: bool, cause: str | Tampered) -> None:
        """Note, once, that the peer closed on purpose (goodbye), or the connection is lost, or what it sent
        was altered on the path (`Tampered` as the cause): then nothing is known against the peer."""


class Link(ABC):
    """One end of a connection.

    Attributes:
        room: whether `write` may be called. When it is False, `LinkUser.writable` will be called later.
        fragment: bytes of the largest payload that `write` takes.
        producer, consumer: the rings by which small frames go, where there are some now.
        on_closed: called when a link that this side closed gracefully is gone. Not after `kill`.
    """

    room: bool
    fragment: int = FRAGMENT
    producer: _engine.Producer | None = None
    consumer: _engine.Consumer | None = None
    on_closed: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        """Whether what is posted leaves at once. When it is False, `LinkUser.writable` will be called later.
        What answers frames of the peer waits for that: one that reads nothing would fill memory."""
        return True

    @abstractmethod
    def start(self, user: LinkUser) -> None:
        """Begin to deliver frames (never from inside this call)."""

    @abstractmethod
    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        """Send a small frame. The payload is copied where it cannot leave at once. Never calls back.

        Args:
            sealed: its bytes have to be authenticated, where the link's frames are. Others need not.
        """

    def piece(self, message: Message) -> int:
        """Bytes of the largest fragment that `write`, called next, takes of what is left of a message."""
        return self.fragment

    @abstractmethod
    def write(self, message: Message, start: int, stop: int) -> Handed:
        """Send the bytes from `start` to `stop` of a message; only while `room`. Never calls back."""

    def withdraw(self, context: int) -> None:  # noqa: B027 - what lends nothing has nothing to do here
        """Withdraw all that is lent of a context. When this returns, what the peer has yet to read of it, or
        is reading, counts nowhere: the owner may write to its memory, and free it."""

    def keep(self) -> None:  # noqa: B027 - what copies all at once has nothing to do here
        """Copy what is still borrowed; the owner's memory is not touched afterwards."""

    def divert(self, place: memoryview) -> None:  # noqa: B027 - likewise
        """Put the rest of the payload that is arriving into `place` (at least as large) instead."""

    def poll(self) -> None:  # noqa: B027 - what moves by itself has nothing to do here
        """Read and write now what can be, as the loop would later. May call the user back."""

    def later(self, callback: Callable[[], None]) -> None:
        """Have something done before the loop sleeps, but not before what was read already is acted on."""
        callback()

    @abstractmethod
    def close(self) -> None:
        """Say goodbye after what was sent, and go when the peer has answered. The user hears no more."""

    @abstractmethod
    def kill(self) -> None:
        """End at once; nobody is called."""
