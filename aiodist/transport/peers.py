"""Common part of endpoints: a channel each way per peer, one report of each peer's end, orderly closing."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable

from aiodist.environment.tuning import EAGER_BUDGET
from aiodist.errors import GroupBroken, Tampered, UsageError
from aiodist.transport.base import (
    ControlLink,
    Endpoint,
    Incoming,
    Key,
    Observer,
    Outgoing,
    Route,
)
from aiodist.transport.receiving import Receiver
from aiodist.transport.sending import Sender

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


class Peer:
    """An endpoint's record of one rank.

    Attributes:
        ended: its loss or goodbye was reported; nothing more will be.
        over: what the outgoing channel's link runs over, once there is one.
        pid: on this host, as the kernel says.
    """

    __slots__ = ("ended", "over", "pid", "rank", "receiver", "sender")

    def __init__(self, rank: int, sender: Sender, receiver: Receiver) -> None:
        self.rank = rank
        self.sender = sender
        self.receiver = receiver
        self.ended = False
        self.over: Route | None = None
        self.pid: int | None = None


class ChannelEndpoint(Endpoint):
    """The part of an endpoint that does not depend on how links are made.

    Args:
        loop: the event loop that everything happens on.
        rank: this process's global rank.
        eager_budget: bytes per (channel, context); the same on every rank.
            0: every send waits for its receive.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        *,
        eager_budget: int = EAGER_BUDGET,
    ) -> None:
        self.rank = rank
        self.card = {}
        self.observer: Observer = Silent()
        self.on_control = _refuse_control
        self._loop = loop
        self._eager_budget = eager_budget
        self._peers: dict[int, Peer] = {}
        self._retired: set[int] = set()
        self._controls: set[ControlLink] = set()
        self._controls_gone: Callable[[], None] | None = None
        self._closing = False
        self._closed = False

    @abstractmethod
    def _dial(self, peer: Peer) -> None:
        """Get a link to a peer for its sender, once; asked for by its first send. Answers later."""

    # Endpoint.

    def statistics(self) -> dict[str, int]:
        peers = self._peers.values()
        return {
            "outgoing": sum(peer.sender.link is not None for peer in peers),
            "outgoing_shm": sum(peer.over == "shm" for peer in peers),
            "incoming": sum(peer.receiver.link is not None for peer in peers),
            "control": len(self._controls),
        }

    def outgoing(self, rank: int) -> Outgoing:
        return self._peer(rank).sender

    def incoming(self, rank: int) -> Incoming:
        return self._peer(rank).receiver

    def peer_pid(self, rank: int) -> int | None:
        peer = self._peers.get(rank)
        return None if peer is None else peer.pid

    def drop(self, rank: int) -> None:
        if self._closing:
            return
        peer = self._peer(rank)
        peer.ended = True
        peer.sender.fail()
        peer.receiver.kill()

    def cancel(self, context: int) -> None:
        for peer in self._peers.values():
            peer.sender.cancel(context)
            peer.receiver.cancel(context)

    def retire(self, context: int) -> None:
        self._retired.add(context)
        for peer in self._peers.values():
            peer.sender.retire(context)
            peer.receiver.retire(context)

    async def aclose(self, linger: float | None = None) -> None:
        if self._closing:
            return
        self._closing = True
        patience = LINGER if linger is None else linger
        self._stop_accepting()
        try:
            # First what we sent: a peer that has answered goodbye here has taken all of it, so that
            # it hears the goodbyes of the second step after the data.
            senders = [peer.sender for peer in self._peers.values()]
            await self._close_all([_closer(sender) for sender in senders], patience)
            receivers = [peer.receiver for peer in self._peers.values()]
            last = [receiver.close for receiver in receivers]
            await self._close_all([*last, self._close_controls], min(patience, 1.0))
            await self._settle()
        finally:
            self.kill()

    def kill(self) -> None:
        self._closing = self._closed = True
        for peer in self._peers.values():
            peer.sender.on_closed = None
            peer.sender.kill()
            peer.receiver.kill()
        for control in tuple(self._controls):
            control.kill()
        self._controls.clear()

    # For subclasses.

    def _stop_accepting(self) -> None:
        """Take no new connections: closing begins."""

    async def _settle(self) -> None:
        """End whatever else there is."""

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
        if self._closing:
            raise UsageError("the endpoint is closed")

    def _peer(self, rank: int) -> Peer:
        peer = self._peers.get(rank)
        if peer is None:
            self._check_open()
            budget = self._eager_budget
            retired = self._retired
            sender = Sender(rank, self._dial_rank, self._ended, eager_budget=budget, retired=retired)
            receiver = Receiver(
                *(rank, self._arrived, self._ended),
                crowded=self._crowded,
                eager_budget=budget,
                retired=retired,
            )
            peer = self._peers[rank] = Peer(rank, sender, receiver)
        return peer

    def _lost(self, peer: Peer, cause: str) -> None:
        """Report a loss, once, and end all that connects us: in this order. A peer that broke the protocol
        still lives, and takes the end of its connections for this process's: the others must have heard by
        then whose fault it is, or they give up the wrong one."""
        try:
            if not peer.ended and not self._closing:
                peer.ended = True
                self.observer.lost(peer.rank, cause)
        finally:
            peer.sender.fail()
            peer.receiver.kill()

    def _dial_rank(self, rank: int) -> None:
        self._dial(self._peers[rank])

    def _arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        self.observer.arrived(rank, key, signature, nbytes)

    def _crowded(self, rank: int) -> None:
        self.observer.crowded(rank)

    def _ended(self, rank: int, goodbye: bool, cause: str | Tampered) -> None:
        peer = self._peers[rank]
        if isinstance(cause, Tampered):
            if not peer.ended and not self._closing:
                self.observer.tampered(rank, cause)
        elif not goodbye:
            self._lost(peer, cause)
        elif not peer.ended and not self._closing:
            peer.ended = True
            self.observer.goodbye(peer.rank)

    async def _close_all(self, closers: Iterable[Callable[[Callable[[], None]], None]], limit: float) -> None:
        """Call each with a callback, and wait until all were called back, at most `limit` seconds."""
        waiting = 1
        over: asyncio.Future[None] = self._loop.create_future()

        def one_less() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                _set(over)

        for close in closers:
            waiting += 1
            close(one_less)
        one_less()
        timer = self._loop.call_later(limit, _set, over)
        try:
            await over
        finally:
            timer.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _closer(sender: Sender) -> Callable[[Callable[[], None]], None]:
    def close(on_closed: Callable[[], None]) -> None:
        if sender.over:
            on_closed()
        else:
            sender.on_closed = on_closed
            sender.close()

    return close


def _refuse_control(rank: int, link: ControlLink) -> None:
    link.kill()
