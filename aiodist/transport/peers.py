"""Common part of endpoints: a channel each way per peer, one report of each peer's end, orderly closing."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import GroupBroken, Tampered, UsageError
from aiodist.base.recent import Recent
from aiodist.net.tasks import settle
from aiodist.net.traffic import Traffic
from aiodist.transport.base import EagerHandler, Key, Observer, Route
from aiodist.transport.control_link import ControlLink
from aiodist.transport.line import Line
from aiodist.transport.link import Waking
from aiodist.transport.memory_link import MemoryLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.sending import Outgoing
from aiodist.transport.shm.segment import PeerSegment, Segment

LINGER = 5.0
"""Seconds that closing waits for peers to take what was sent and to answer goodbye."""


class Silent:
    """An observer that does not care."""

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Ignore it."""

    def crowded(self, rank: int) -> None:
        """Ignore it."""

    def lost(self, rank: int, cause: str) -> None:
        """Ignore it."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Ignore it."""

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """Ignore it."""

    def goodbye(self, rank: int) -> None:
        """Ignore it."""

    def refuses(self, rank: int) -> None:
        """Ignore it."""


@dataclass(slots=True, eq=False)
class Peer:
    """An endpoint's record of one rank.

    Attributes:
        ended: its loss or goodbye was reported; nothing more will be.
        over: what the outgoing channel's link runs over, once there is one.
        pid: on this host, as the kernel says.
    """

    rank: int
    sender: Outgoing
    receiver: Incoming
    ended: bool = False
    over: Route | None = None
    pid: int | None = None


class Endpoint(ABC):
    """One process's end of all its channels and control links. Subclasses say how links are made.

    Args:
        loop: the event loop that everything happens on.
        rank: this process's global rank.
        eager_budget: bytes per (channel, context); the same on every rank.
            0: every send waits for its receive.

    Attributes:
        rank: as given.
        card: what peers must know to dial (msgpack-able, secret-free). Complete once the endpoint exists.
        observer: told what comes from peers; set it before the first channel is asked for.
        on_control: called as (rank, link) for each control link that a peer dialed.
        on_line: called as (rank, line) for each line that a peer dialed.
        takers: of the contexts whose groups take eager messages themselves; `retire` takes them out.
        closing: nothing is connected any more: it closes, or has closed.
        closed: all connections have ended.
        exposed: whether any process that reaches it over the network may pose as a rank, for want of a secret
            and TLS.
    """

    exposed: bool = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        *,
        eager_budget: int = EAGER_BUDGET,
    ) -> None:
        self.rank = rank
        self.card: dict[str, Any] = {}
        self.observer: Observer = Silent()
        self.on_control: Callable[[int, ControlLink], None] = _refuse_control
        self.on_line: Callable[[int, Line], None] = _refuse_line
        self._loop = loop
        self._eager_budget = eager_budget
        self._peers: dict[int, Peer] = {}
        self._retired = Recent()
        self.takers: dict[int, EagerHandler] = {}
        self._controls: set[ControlLink] = set()
        self._controls_gone: Callable[[], None] | None = None
        self.closing = False
        self.closed = False

    @abstractmethod
    def _dial(self, peer: Peer) -> None:
        """Get a link to a peer for its sender, once; asked for by its first send. Answers later."""

    # Making links. Where no memory is shared, and peers find each other by themselves, the defaults do.

    def introduce(self, cards: Mapping[int, Mapping[str, Any]]) -> None:  # noqa: B027
        """Learn the cards of peers. Needed before dialing them, and before they are let in."""

    @property
    def segment(self) -> Segment | None:
        """The memory that this process shares with its local peers; None before `prove_local` has asked one,
        and where there is no shared memory. It stays until the endpoint closes."""
        return None

    @property
    def peer_segments(self) -> Mapping[int, PeerSegment]:
        """The segments of the local peers, by global rank, without this process's own. One of a peer that is
        lost or has said goodbye stays until the endpoint closes: what it published can still be read."""
        return {}

    def wake_by(self, waking: Waking | None) -> None:  # noqa: B027
        """Have links with local peers use rings in shared memory; None: no more, it is about to go."""

    @abstractmethod
    async def prove_local(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = 5.0
    ) -> set[int]:
        """The ranks of `ranks` that share memory with this process, found by doing it; they are in
        `peer_segments` then. Bounded: a rank that does not answer within seconds is not local.

        Args:
            ranks: the candidates.
            linked: those of them that this process will want a control link to. Where it can, one comes
                with the proof, so that `link_control` need not dial after `keep_peer_segments`.
            patience: seconds to wait for answers, at most.

        Raises:
            BackendUnavailable: this process must share memory, and cannot.
        """

    def keep_peer_segments(self, ranks: Collection[int]) -> None:  # noqa: B027
        """Keep the local peers that were agreed on: release those that are not among `ranks`, and prove
        nothing any more. Control links that came with a proof are reported soon."""

    def route(self, rank: int, route: Route) -> None:  # noqa: B027
        """Fix what the outgoing channel to `rank` runs over. `UsageError` once it was used over the other."""

    @abstractmethod
    def link_control(self, rank: int) -> Awaitable[ControlLink]:
        """Dial a control link to `rank`. Raises `PeerLost` if that cannot be done, and another `GroupBroken`
        where that is this process's own fault."""

    @abstractmethod
    async def dial_line(self, rank: int) -> Line:
        """Dial a line to `rank`, which outlives both endpoints. `OSError` or `AiodistError` if that cannot be
        done."""

    # Channels.

    def statistics(self) -> dict[str, int]:
        """Counts of its links now, by name; none where it keeps none."""
        peers = [peer for peer in self._peers.values() if peer.rank != self.rank]
        return {
            "outgoing": sum(peer.sender.link is not None for peer in peers),
            "outgoing_shm": sum(peer.over == "shm" for peer in peers),
            "incoming": sum(peer.receiver.link is not None for peer in peers),
            "control": len(self._controls),
        }

    def outgoing(self, rank: int) -> Outgoing:
        """The channel to `rank`, also to this one; returns at once, dials when first used. Failure goes to
        `Observer.lost`."""
        return self._peer(rank).sender

    def incoming(self, rank: int) -> Incoming:
        """The channel from `rank`; receives can be posted before it connects."""
        return self._peer(rank).receiver

    def peer_pid(self, rank: int) -> int | None:
        """The process id of a peer on this host, as the kernel vouches for it; None where unknown."""
        peer = self._peers.get(rank)
        return None if peer is None else peer.pid

    def traffic(self) -> list[tuple[int, Traffic]]:
        """How the TCP connections with other ranks go. For any thread."""
        return []

    def drop(self, rank: int) -> None:
        """End what connects this process with a rank that was given up; take no channel from it any more.
        Posted receives are forgotten, their sinks are not touched any more. Its end is not reported."""
        if self.closing:
            return
        peer = self._peer(rank)
        peer.ended = True
        peer.sender.kill()
        peer.receiver.kill()

    def cancel(self, context: int) -> None:
        """Call `cancel` on every channel that exists, both ways."""
        for peer in self._peers.values():
            peer.sender.cancel(context)
            peer.receiver.cancel(context)

    def retire(self, context: int) -> None:
        """Call `Outgoing.cancel` and `Incoming.retire` on every channel, also on later ones."""
        self._retired.add(context)
        self.takers.pop(context, None)
        for peer in self._peers.values():
            peer.sender.retire(context)
            peer.receiver.retire(context)

    async def aclose(self, linger: float | None = None) -> None:
        """Close gracefully: what was begun is sent, every peer is told goodbye; the wait is bounded.
        Returns with no task, socket or mapping open.

        Args:
            linger: seconds to wait for peers; None: as long as is usual.
        """
        if self.closing:
            return
        self.closing = True
        patience = LINGER if linger is None else linger
        self._stop_accepting()
        try:
            # First what we sent: a peer that has answered goodbye here has taken all of it, so that
            # it hears the goodbyes of the second step after the data.
            await self._close_all([peer.sender.close for peer in self._peers.values()], patience)
            last = [peer.receiver.close for peer in self._peers.values()]
            await self._close_all([*last, self._close_controls], min(patience, 1.0))
            await self._end_tasks()
        finally:
            self.kill()

    def kill(self) -> None:
        """Close at once without goodbye, as if the process had died. Needs no running loop."""
        self.closing = self.closed = True
        for peer in self._peers.values():
            peer.sender.on_closed = None
            peer.sender.kill()
            peer.receiver.kill()
        for control in tuple(self._controls):
            control.kill()
        self._controls.clear()

    # For subclasses.

    def _stop_accepting(self) -> None:  # noqa: B027
        """Take no new connections: closing begins."""

    async def _end_tasks(self) -> None:  # noqa: B027
        """End whatever else there is."""

    def _control(self, line: Line, rank: int) -> ControlLink:
        """A control link over a line, kept until it holds nothing any more."""
        control = ControlLink(self._loop, line, rank, self._forget_control)
        self._controls.add(control)
        return control

    def _forget_control(self, control: ControlLink) -> None:
        self._controls.discard(control)
        if not self._controls and self._controls_gone is not None:
            self._controls_gone()
            self._controls_gone = None

    def _close_controls(self, on_closed: Callable[[], None]) -> None:
        if not self._controls:
            on_closed()
            return
        self._controls_gone = on_closed
        for control in tuple(self._controls):
            control.close()

    def _check_open(self) -> None:
        if self.closing:
            raise UsageError("the endpoint is closed")

    def _peer(self, rank: int) -> Peer:
        peer = self._peers.get(rank)
        if peer is None:
            self._check_open()
            budget = self._eager_budget
            retired = self._retired
            sender = Outgoing(rank, self._dial_rank, self._sender_ended, eager_budget=budget, retired=retired)
            receiver = Incoming(
                *(rank, self._arrived, self._ended),
                crowded=self._crowded,
                eager_budget=budget,
                retired=retired,
                takers=self.takers,
            )
            peer = self._peers[rank] = Peer(rank, sender, receiver)
            if rank == self.rank:  # what goes to oneself needs no connection
                link, other_end = MemoryLink.pair(self._loop, rank, rank)
                receiver.attach(other_end)
                sender.attach(link)
        return peer

    def _lost(self, peer: Peer, cause: str) -> None:
        """Report a loss, once, and end all that connects us: in this order. A peer that broke the protocol
        still lives, and takes the end of its connections for this process's: the others must have heard by
        then whose fault it is, or they give up the wrong one."""
        try:
            if not peer.ended and not self.closing:
                peer.ended = True
                self.observer.lost(peer.rank, cause)
        finally:
            peer.sender.kill()
            peer.receiver.kill()
            if not self.closing:
                self.observer.refuses(peer.rank)

    def _dial_rank(self, rank: int) -> None:
        self._dial(self._peers[rank])

    def _arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        self.observer.arrived(rank, key, signature, nbytes)

    def _crowded(self, rank: int) -> None:
        self.observer.crowded(rank)

    def _ended(self, rank: int, goodbye: bool, cause: str | Tampered) -> None:
        peer = self._peers[rank]
        if isinstance(cause, Tampered):
            if not peer.ended and not self.closing:
                self.observer.tampered(rank, cause)
        elif not goodbye:
            self._lost(peer, cause)
        elif not peer.ended and not self.closing:
            peer.ended = True
            self.observer.goodbye(peer.rank)

    def _sender_ended(self, rank: int, goodbye: bool, cause: str | Tampered) -> None:
        self._ended(rank, goodbye, cause)
        if goodbye and not self.closing:
            self.observer.refuses(rank)

    async def _close_all(self, closers: Iterable[Callable[[Callable[[], None]], None]], limit: float) -> None:
        """Call each with a callback, and wait until all were called back, at most `limit` seconds."""
        waiting = 1
        over: asyncio.Future[None] = self._loop.create_future()

        def one_less() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                settle(over, None)

        for close in closers:
            waiting += 1
            close(one_less)
        one_less()
        timer = self._loop.call_later(limit, settle, over, None)
        try:
            await over
        finally:
            timer.cancel()


def _refuse_control(rank: int, link: ControlLink) -> None:
    link.kill()


def _refuse_line(rank: int, line: Line) -> None:
    line.kill()
