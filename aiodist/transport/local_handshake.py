"""One connection on which two processes of a host prove who they are, and then pass their segments.

    who dialed   hello ─▶            segment, descriptors ─▶                    (is it to be a control link?)
    the other            ◀─ hello                            ◀─ segment, descriptors

The name that was dialed may belong to another process by now: names of the abstract namespace are free again
when their process dies. So no descriptor leaves before the kernel has said that the other end runs under this
user, and its hello that it is the process of that card; and none that came is looked at before either.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aiodist.base.errors import AiodistError, WireError
from aiodist.net.alarm import Alarm
from aiodist.net.descriptors import receive
from aiodist.net.local_socket import credentials
from aiodist.net.wire.local_message import MESSAGE_BYTES, TOKEN_BYTES, LocalMessage, seal, unseal
from aiodist.transport.shm.segment import PeerSegment, Segment

FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
"""The kernel takes no more for a moment: too many wait to be accepted, or too many descriptors travel."""

_PAUSE = 0.002  # seconds until that is tried again
_DESCRIPTORS = 2  # of a segment
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Me(NamedTuple):
    """The identity of this process, as messages have it.

    Args:
        rank: global rank.
        job: the job's id.
        secret: the job's secret.
        nonce: its card's.
    """

    rank: int
    job: str
    secret: bytes
    nonce: bytes


class HandshakeOwner(Protocol):
    """The owner of handshakes: `LocalPeers`."""

    @property
    def cards(self) -> Mapping[int, Mapping[str, Any]]:
        """The cards of those who may be local peers."""

    @property
    def peer_segments(self) -> Mapping[int, PeerSegment]:
        """The segments of those who are."""

    def admits(self, rank: int) -> bool:
        """Whether a handshake that `rank` has dialed shall go on."""

    def segment_for_others(self) -> Segment | None:
        """The segment of this process; None where it can have none."""

    def succeeded(
        self, handshake: LocalHandshake, peer_segment: PeerSegment, line: socket.socket | None
    ) -> None:
        """Take the local peer that a handshake has made; `line` is to be a control link with it. Both are the
        owner's from now on."""

    def failed(self, handshake: LocalHandshake, error: BaseException | None) -> None:
        """Forget a handshake that came to nothing, because of this error where there was one here."""


class LocalHandshake:
    """One handshake, as above. It closes its connection by itself when it is over; the owner is told, once.

    Args:
        loop: the event loop.
        sock: connected, non-blocking; owned. Its other end runs under this user.
        me: this process.
        owner: is told how it ends.
        rank: whom this process dialed; None where it was dialed.
        linked: whether the connection that this process dialed is to become a control link.

    Attributes:
        rank: whom it is with, once that is known.
        answered: the other end has proved that it is that rank.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        me: Me,
        owner: HandshakeOwner,
        rank: int | None = None,
        linked: bool = False,
    ) -> None:
        self.rank = rank
        self.answered = False
        self._loop = loop
        self._sock = sock
        self._me = me
        self._owner = owner
        self._dialed = rank is not None
        self._linked = linked
        self._said = b""  # all messages, both ways
        self._in = b""
        self._fds: list[int] = []
        self._peer_segment: PeerSegment | None = None
        self._alarm = Alarm(loop, self._again)
        self._over = False
        loop.add_reader(sock.fileno(), self._readable)

    def begin(self) -> None:
        """Send the first message. For the side that dialed."""
        try:
            self._say_hello()
        except (AiodistError, OSError) as error:
            self._fail(error)

    def close(self) -> None:
        """End it without another message. May be called twice."""
        if not self._over:
            self._stop()
            self._sock.close()

    def _stop(self) -> None:
        """Let go of everything but the connection."""
        self._over = True
        self._alarm.stop()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
        self._close_fds()
        if self._peer_segment is not None:
            self._peer_segment.close()

    def _fail(self, error: BaseException | None = None) -> None:
        if not self._over:
            self.close()
            self._owner.failed(self, error)

    # What is heard.

    def _readable(self) -> None:
        try:
            data, descriptors = receive(self._sock, MESSAGE_BYTES - len(self._in), _DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        self._fds += descriptors
        self._in += data
        if not data or len(self._fds) > _DESCRIPTORS:
            self._fail()
        elif len(self._in) == MESSAGE_BYTES:
            message, self._in = self._in, b""
            try:
                self._hear(message)
            except (AiodistError, OSError, ValueError) as error:  # no concern of the group: it proved nothing
                self._fail(error)
            finally:
                self._close_fds()

    def _hear(self, data: bytes) -> None:
        me = self._me
        message = unseal(data, me.secret, me.job, me.rank, me.nonce, self._said)
        card = self._owner.cards.get(message.sender)
        if card is None or card["nonce"] != message.card_nonce or message.sender in self._owner.peer_segments:
            raise WireError("a message of a rank that is not awaited")
        if self.rank is None and self._owner.admits(message.sender):
            self.rank = message.sender
        if message.sender != self.rank:
            raise WireError("a message of another rank")
        self.answered = True
        messages = len(self._said) // MESSAGE_BYTES
        self._said += data
        if messages < 2:
            if self._fds or message.nbytes:
                raise WireError("a hello with a segment")
            if self._dialed:
                self._say_segment()
            else:
                self._say_hello()
            return
        if not self._dialed:
            self._linked = message.linked
        if message.nbytes:
            self._peer_segment = self._meet(message)
        if self._dialed:
            self._end()
        else:
            self._say_segment()

    def _meet(self, message: LocalMessage) -> PeerSegment:
        """Take over the memory and the bell that came beside a message."""
        if len(self._fds) != _DESCRIPTORS:
            raise WireError("a message without a segment")
        memory, bell = self._fds
        self._fds.clear()
        pid = max(credentials(self._sock)[0], 0)
        return PeerSegment(message.sender, pid, (memory, bell), message.nbytes, message.token)

    # What is said.

    def _say_hello(self) -> None:
        self._say(LocalMessage(self._me.rank, self._me.nonce, 0, secrets.token_bytes(TOKEN_BYTES)))

    def _say_segment(self) -> None:
        """Send the segment, with its descriptors; 0 bytes where this process, or the other, has none."""
        me = self._me
        segment = self._owner.segment_for_others() if self._dialed or self._peer_segment is not None else None
        if segment is not None:
            message = LocalMessage(
                me.rank, me.nonce, segment.nbytes, segment.arena.nonce, self._dialed and self._linked
            )
            descriptors: Sequence[int] = segment.descriptors()
        else:
            message, descriptors = LocalMessage(me.rank, me.nonce, 0, bytes(TOKEN_BYTES)), ()
            if self._peer_segment is not None:
                self._peer_segment.close()
                self._peer_segment = None
        if self._say(message, descriptors) and not self._dialed:
            self._end()

    def _say(self, message: LocalMessage, descriptors: Sequence[int] = ()) -> bool:
        """Send a message; whether it could be sent. Otherwise that is tried again."""
        me, rank = self._me, self.rank
        assert rank is not None
        data = seal(message, me.secret, me.job, rank, self._owner.cards[rank]["nonce"], self._said)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            if self._sock.sendmsg([data], beside if descriptors else [], _NOSIGNAL) != len(data):
                raise WireError("a peer that does not read its messages")  # they always fit
        except OSError as error:
            if error.errno not in FULL or not descriptors:
                raise
            self._alarm.set(self._loop.time() + _PAUSE)
            return False
        self._said += data
        return True

    def _again(self) -> None:
        try:
            self._say_segment()
        except (AiodistError, OSError) as error:
            self._fail(error)

    def _end(self) -> None:
        """Finish: both have read all."""
        peer_segment, self._peer_segment = self._peer_segment, None
        if peer_segment is None or self.rank is None:
            self._fail()
            return
        self._stop()
        line = self._sock if self._linked else None
        if line is None:
            self._sock.close()
        self._owner.succeeded(self, peer_segment, line)

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
