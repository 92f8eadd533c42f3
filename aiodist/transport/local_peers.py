"""Proof that two processes share a host: each passes the other its memory and its bells.

Every process listens under a fresh name in the abstract namespace of Unix sockets, which its card announces.
The messages of a connection are in `local_handshake`: a process that can verify, map and find the right nonce
in what comes sees that memory, and has the sender's process id from the kernel. The connection itself can
stay as a *line*: a control link that need not be dialed or greeted.

The higher rank of a pair dials. The lower one waits a little, and dials, too, in case the other is not about
to, or cannot be reached; the higher one, if it has dialed, does not admit that.

No connection is admitted before the cards are known: the kernel queues some, then makes others wait. Another
user of this host is refused at both ends before anything is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

from aiodist.base.backoff import Backoff
from aiodist.base.environment.user import is_me
from aiodist.base.errors import BackendUnavailable
from aiodist.net.alarm import Alarm
from aiodist.net.listener import Listener
from aiodist.net.local_socket import connect_unix, credentials
from aiodist.net.refusals import Refusals, address_of
from aiodist.net.shortage import shortage
from aiodist.net.tasks import settle
from aiodist.transport.listening import listen_unix, unix_address
from aiodist.transport.local_handshake import FULL, LocalHandshake, Me
from aiodist.transport.shm.arena import NONCE_BYTES
from aiodist.transport.shm.segment import PeerSegment, Segment, segment_bytes

ANSWER_DEADLINE = 5.0
"""Seconds in which a local peer must have answered."""

_HOLD = 0.05  # seconds in which a higher rank may dial before it is dialed
_PAUSES = (0.0005, 0.005)  # seconds until a crowded local peer is dialed again: the first, the longest
_MOST_UNAUTHENTICATED = 64  # connections besides those of possible local peers: with more, the oldest goes

_log = logging.getLogger("aiodist.transport")


class LocalPeers:
    """One process's handshakes with its local peers. It admits them from `introduce` on.

    Args:
        loop: the event loop.
        me: this process.
        segment_nbytes: virtual bytes of its segment; None: as many as the system's limits let it.

    Attributes:
        name: its address, for the card.
        segment: this process's own, once it was needed.
        peer_segments: of the ranks that were proved to be local.
        cards: of those that may be.
        lacking: what kept others from being proved that was this process's own fault: an error of the system.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        me: Me,
        segment_nbytes: int | None = None,
    ) -> None:
        self.segment: Segment | None = None
        self.peer_segments: dict[int, PeerSegment] = {}
        self.cards: dict[int, Mapping[str, Any]] = {}
        self.lacking: OSError | None = None
        self._loop = loop
        self._me = me
        self._segment_nbytes = segment_nbytes
        self._no_segment: BackendUnavailable | None = None
        self._to_dial: set[int] = set()
        self._linked: set[int] = set()  # with whom the connection is to stay as a line
        self._own_lines: dict[int, socket.socket] = {}
        self._their_lines: dict[int, socket.socket] = {}  # of those who dialed
        self._kept = False
        self._dialed: set[int] = set()
        self._not_local: set[int] = set()  # ranks that turned out not to be local
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._handshakes: dict[LocalHandshake, None] = {}  # in order of arrival
        self._alarm = Alarm(loop, self._dial)
        self._backoff = Backoff(*_PAUSES)
        self._refusals = Refusals(_log)
        self._listener: Listener | None = None
        self._open = True
        self.name, self._sock = listen_unix()

    def introduce(self, cards: Mapping[int, Mapping[str, Any]]) -> None:
        """Learn the cards of those who may be local; they are admitted from now on."""
        self.cards.update(cards)
        if self._listener is None and self._open:
            self._listener = Listener(
                self._loop,
                [self._sock],
                lambda sock, deadline: self._welcome(sock),
                self._refusals.turned_away,
                _log,
            )

    async def prove(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = ANSWER_DEADLINE
    ) -> set[int]:
        """Have handshakes with `ranks`, which were introduced; returns those that are local peers in the end.
        With those in `linked` the connection stays as a line where this process dials it. A rank that does
        not answer in `patience` seconds is no local peer.

        Raises:
            BackendUnavailable: this process can have no segment.
        """
        asked = set(ranks)
        if not self._open:
            return asked & self.peer_segments.keys()
        self._linked.update(linked)
        missing = asked - self.peer_segments.keys() - self._not_local
        for rank in missing:
            self._waiting.setdefault(rank, self._loop.create_future())
        pending = [self._waiting[rank] for rank in missing]
        self.segment_for_others()
        above = {rank for rank in missing if rank > self._me.rank}
        self._dial(missing - above)
        held = self._loop.call_later(_HOLD, self._dial, above)
        if pending and self._no_segment is None:
            await asyncio.wait(pending, timeout=min(patience, ANSWER_DEADLINE))
            held.cancel()
        for rank in missing:
            self._decided(rank)
        if self._no_segment is not None:
            raise self._no_segment  # handshakes go on: the others are told, so that they do not wait
        return asked & self.peer_segments.keys()

    def keep(self, ranks: Collection[int]) -> dict[int, socket.socket]:
        """Keep the local peers that were agreed on: release those not among `ranks`, admit none any more.

        Returns:
            The lines that those who stay have dialed; the caller's from now on.
        """
        self._stop_admitting()
        self._kept = True
        for rank in [rank for rank in self.peer_segments if rank not in ranks]:
            self.peer_segments.pop(rank).close()
        _hang_up(self._own_lines, self.peer_segments)
        _hang_up(self._their_lines, self.peer_segments)
        came, self._their_lines = self._their_lines, {}
        return came

    def line(self, rank: int) -> socket.socket | None:
        """Our end of the line to a rank that was kept, and so has the other; the caller's from now on."""
        return self._own_lines.pop(rank, None) if self._kept else None

    def close(self) -> None:
        """Close everything. May be called twice."""
        self._stop_admitting()
        _hang_up(self._own_lines)
        _hang_up(self._their_lines)
        while self.peer_segments:
            self.peer_segments.popitem()[1].close()
        if self.segment is not None:
            self.segment.close()
            self.segment = None  # it stays mapped while a user's array is in it, and not for our sake

    # Dialing.

    def _dial(self, ranks: Set[int] = frozenset()) -> None:
        """Dial ranks, and those still to be dialed; try again soon where too many wait to be admitted."""
        if not self._open:
            return
        self._alarm.set()
        under_way = {handshake.rank for handshake in self._handshakes}
        self._to_dial |= ranks - self.peer_segments.keys() - self._not_local - self._dialed - under_way
        # The nearest rank first, so that not all dial rank 0 at once.
        for rank in sorted(self._to_dial, reverse=True):
            try:
                sock = self._connect(rank)
            except OSError as error:
                if error.errno in FULL:
                    continue
                self._note(error)
                self._note_not_local(rank)  # most likely of another network namespace: its name is not here
            else:
                self._dialed.add(rank)
                handshake = LocalHandshake(self._loop, sock, self._me, self, rank, rank in self._linked)
                self._handshakes[handshake] = None
                handshake.begin()
            self._to_dial.discard(rank)
        if self._to_dial:
            self._alarm.set(self._loop.time() + self._backoff.next())

    def _connect(self, rank: int) -> socket.socket:
        """A connection to the listener under a rank's name, if that is a process of this user."""
        sock = connect_unix(unix_address(self.cards[rank]["mail"]))
        if not is_me(user := credentials(sock)[1]):
            sock.close()
            _log.warning("uid %d listens under the name of rank %d on this host: left alone", user, rank)
            raise PermissionError
        return sock

    # Admitting.

    def _welcome(self, sock: socket.socket) -> None:
        """Admit a connection that has something to read."""
        if not is_me(credentials(sock)[1]):
            self._refusals.turned_away(sock, "it runs under another user")
            sock.close()
            return
        unauthenticated = [one for one in self._handshakes if one.rank is None]
        if len(unauthenticated) >= len(self.cards) + _MOST_UNAUTHENTICATED:  # a local peer needs a moment
            unauthenticated[0].close()
            del self._handshakes[unauthenticated[0]]
            self._refusals.say(address_of(sock), "too many connections that say nothing: the oldest goes")
        self._handshakes[LocalHandshake(self._loop, sock, self._me, self)] = None

    # Owner of handshakes.

    def admits(self, rank: int) -> bool:
        """Whether a handshake that a rank has dialed goes on: one of a pair does, where both have."""
        return rank > self._me.rank or rank not in self._to_dial | self._dialed

    def segment_for_others(self) -> Segment | None:
        """The segment of this process, made when it is first needed."""
        if self.segment is None and self._no_segment is None:
            try:
                self.segment = Segment(self._segment_nbytes or segment_bytes(), os.urandom(NONCE_BYTES))
            except BackendUnavailable as error:
                self._no_segment = error
                self._note(error.__cause__)
        return self.segment

    def succeeded(
        self, handshake: LocalHandshake, peer_segment: PeerSegment, line: socket.socket | None
    ) -> None:
        """Take the local peer that a handshake has made."""
        del self._handshakes[handshake]
        rank = peer_segment.rank
        self.peer_segments[rank] = peer_segment
        if line is not None:
            (self._own_lines if rank < self._me.rank else self._their_lines)[rank] = line
        self._decided(rank)

    def failed(self, handshake: LocalHandshake, error: BaseException | None) -> None:
        """Forget a handshake that came to nothing. One with a higher rank that did not answer may do so
        because that rank has dialed itself."""
        self._handshakes.pop(handshake, None)
        if handshake.rank is not None:  # what unauthenticated peers make this process lack is not reported
            self._note(error)
        if handshake.rank is not None and (handshake.answered or handshake.rank < self._me.rank):
            self._note_not_local(handshake.rank)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, OSError) and shortage(error) is not None:
            self.lacking = error

    def _note_not_local(self, rank: int) -> None:
        self._not_local.add(rank)
        self._decided(rank)

    def _decided(self, rank: int) -> None:
        future = self._waiting.pop(rank, None)
        if future is not None:
            settle(future, None)

    # Ending.

    def _stop_admitting(self) -> None:
        self._open = False
        self._alarm.stop()
        if self._listener is not None:
            self._listener.close()
        self._sock.close()
        self._refusals.log_omitted()
        while self._handshakes:
            self._handshakes.popitem()[0].close()
        if not self._loop.is_closed():
            for rank in list(self._waiting):
                self._decided(rank)


def _hang_up(lines: dict[int, socket.socket], but: Collection[int] = ()) -> None:
    for rank in [rank for rank in lines if rank not in but]:
        lines.pop(rank).close()
