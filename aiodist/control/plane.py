"""The asyncio shell of the control plane: links in, links out, and who listens.

One exists in each process and job. Groups subscribe with their context; a loss is told to all of them,
a message to the one that it names.

Before a loss is declared here, all that the neighbours have written is read: the dead rank's last words, and
that the others have given up this process meanwhile, which was stopped, say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aiodist.control.core import ControlCore, Deliver, Drop, Effect, Transmit
from aiodist.control.liveness import Liveness
from aiodist.control.messages import PING, Message, Say, decode
from aiodist.errors import WireError


class Link(Protocol):
    """What the plane needs of a connection to a neighbour; `transport.base.ControlLink` says more."""

    far: bool

    def send(self, message: bytes) -> None:
        """Queue one message."""

    def drain(self) -> None:
        """Deliver now what has reached this process already."""

    def close(self) -> None:
        """Say goodbye and close."""

    def kill(self) -> None:
        """Close at once, without goodbye."""


class Listener(Protocol):
    """What a group hears."""

    def rank_lost(self, rank: int, cause: str, silence: float | None) -> None:
        """A global rank is gone, noticed so many seconds after its last sign of life (None: nobody knows)."""

    def rank_left(self, rank: int) -> None:
        """A global rank has closed its world: it is in no group any more."""

    def said(self, message: Message) -> None:
        """A message for this group arrived."""


class ControlPlane:
    """One process's place among the control links.

    Args:
        rank: global rank of this process.
        size: number of ranks of the job.

    Attributes:
        on_lost: called with each rank that is lost, before the groups are told: whatever else connects this
            process with it has to end.
        on_proven: called with each rank whose end this process has seen for itself, then.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.core = ControlCore(rank, size)
        self.rank = rank
        self.size = size
        self.on_lost: Callable[[int], object] = _ignore
        self.on_proven: Callable[[int], object] = _ignore
        self._links: dict[int, Link] = {}
        self._listeners: dict[int, Listener] = {}
        self._early: dict[int, list[Message]] = {}
        self._retired: set[int] = set()
        self._parted: set[int] = set()
        self._closed = False
        self._liveness: Liveness | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hearing = False
        self._ends: list[tuple[int, str]] = []  # links that ended while all were read

    # ── links ────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, neighbour: int, link: Link) -> None:
        """A link to a neighbour is up. One with a rank that was given up is closed."""
        if neighbour in self.core.lost or self._closed:
            link.kill()
            return
        self._links[neighbour] = link
        if self._liveness is not None:
            self._liveness.attach(neighbour, link.far, self._now())

    def awaited(self) -> set[int]:
        """Neighbours whose link is not up yet."""
        return set(self.core.neighbours) - self._links.keys() - self.core.lost.keys()

    def received(self, neighbour: int, data: bytes) -> None:
        """Bytes of one message came from a neighbour. Nonsense costs the neighbour its membership."""
        if self._closed or neighbour in self.core.lost:
            return
        if self._liveness is not None:
            self._liveness.heard(neighbour, self._now())
        if data == PING:
            return
        try:
            message = decode(data)
        except WireError as error:
            self.lose(neighbour, f"spoke nonsense on its control link ({error})")
            return
        if message.say is Say.lost and not self._hearing:
            self._hear([message.body[0]])  # its last words, before its link is closed
        self._carry_out(self.core.receive(neighbour, message))
        self._bury()

    def ended(self, neighbour: int, goodbye: bool, cause: str) -> None:
        """A link ended; without goodbye it is a loss."""
        if self._closed:
            return
        self._links.pop(neighbour, None)
        if goodbye:
            self.core.depart(neighbour)
            self._forget(neighbour)
        elif self._hearing:
            self._ends.append((neighbour, cause))
        else:
            self.lose(neighbour, cause)

    # ── signs of life ────────────────────────────────────────────────────────────────────────────────

    def watch(self, loop: asyncio.AbstractEventLoop, every: float, limit: float) -> None:
        """Ping the neighbours from now on, and give up those whose loops do not turn.

        Args:
            loop: its timer and clock; it runs, or is about to.
            every: seconds between two pings.
            limit: seconds without a sign of life after which a neighbour is lost.
        """
        self._loop = loop
        self._liveness = Liveness(every, limit, loop.time())
        for neighbour, link in self._links.items():
            self._liveness.attach(neighbour, link.far, loop.time())
        self._timer = loop.call_later(every, self._beat)

    def hear(self) -> None:
        """Take in all that the neighbours have written. For whoever is about to judge without it."""
        self._hear(list(self._links))
        self._bury()

    def _beat(self) -> None:
        loop, liveness = self._loop, self._liveness
        if loop is None or liveness is None or self._closed or self.rank in self.core.lost:
            return
        self._timer = loop.call_later(liveness.every, self._beat)
        for neighbour in liveness.tick(loop.time()):
            link = self._links.get(neighbour)
            if link is not None:
                link.send(PING)
        if liveness.overdue():
            self.hear()
            for neighbour in liveness.overdue():
                words = f"its event loop has not turned for {liveness.limit:g} s"
                self.lose(neighbour, f"{words} (stopped, or a call that holds the interpreter)")

    def _now(self) -> float:
        return 0.0 if self._loop is None else self._loop.time()

    def _forget(self, neighbour: int) -> None:
        if self._liveness is not None:
            self._liveness.detach(neighbour)

    def _hear(self, neighbours: Iterable[int]) -> None:
        """Read links dry. Losses that this brings to light are kept for `_bury`."""
        if self._hearing:
            return
        self._hearing = True
        try:
            for neighbour in neighbours:
                link = self._links.get(neighbour)
                if link is not None:
                    link.drain()
        finally:
            self._hearing = False

    def _bury(self) -> None:
        """Declare the losses that came to light in `_hear`."""
        while self._ends and not self._hearing:
            self._lose(*self._ends.pop(0))

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, context: int, listener: Listener) -> None:
        """Hear what concerns a group. What was said of it before is told now."""
        self._listeners[context] = listener
        for message in self._early.pop(context, ()):
            listener.said(message)
        for rank, cause in list(self.core.lost.items()):
            listener.rank_lost(rank, cause, self.core.silence.get(rank))
        for rank in list(self._parted):
            listener.rank_left(rank)

    def part(self, rank: int) -> None:
        """A rank said that it closes its world."""
        if rank not in self._parted:
            self._parted.add(rank)
            for hearer in list(self._listeners.values()):
                hearer.rank_left(rank)

    def unsubscribe(self, context: int) -> None:
        """The group is gone for good, or this rank is no member; what is still said of it is dropped."""
        self._listeners.pop(context, None)
        self._early.pop(context, None)
        self._retired.add(context)

    def lose(self, rank: int, cause: str, proven: bool = False) -> None:
        """This process noticed that a rank is gone. First all that was said before is heard.

        Args:
            rank: who.
            cause: how that was noticed.
            proven: whether the kernel says that its process has ended: then it is dead, not only silent.
        """
        if self._closed:
            return
        self._hear(list(self._links))
        self._lose(rank, cause, proven)
        self._bury()
        if proven:  # its loss may have been known before
            self.on_proven(rank)

    def _lose(self, rank: int, cause: str, proven: bool = False) -> None:
        if self._closed:  # by what was heard
            return
        silence = None if self._liveness is None else self._liveness.silence(rank, self._now())
        self._forget(rank)
        self._carry_out(self.core.lose(rank, cause, silence, proven))

    def flood(self, say: Say, *body: Any) -> None:
        """Tell everybody else."""
        if not self._closed:
            self._carry_out(self.core.flood(say, *body))

    def tell(self, ranks: Iterable[int], say: Say, *body: Any) -> None:
        """Tell some ranks, one message each; this process may be among them."""
        if not self._closed:
            for rank in ranks:
                self._carry_out(self.core.tell(rank, say, *body))

    def close(self) -> None:
        """Say goodbye on every link. Nothing is heard afterwards."""
        self._stop()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._listeners.clear()

    def kill(self) -> None:
        """Drop every link without a word, as a crash would."""
        self._stop()
        for link in self._links.values():
            link.kill()
        self._links.clear()
        self._listeners.clear()

    def _stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = self._liveness = None

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, effects: list[Effect]) -> None:
        deliveries: list[Message] = []
        dropped: list[int] = []
        for effect in effects:
            match effect:
                case Transmit(neighbour, message):
                    link = self._links.get(neighbour)
                    if link is not None:
                        link.send(message.encode())
                case Deliver(message):
                    deliveries.append(message)
                case Drop(rank):
                    dropped.append(rank)
        for rank in dropped:  # after the sends: it is told so itself
            link = self._links.pop(rank, None)
            if link is not None:
                link.kill()
            self._forget(rank)
            self.on_lost(rank)
        for message in deliveries:  # after the sends: a group that breaks must not delay the news
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if message.say is Say.lost:
            rank, cause, _ = message.body
            for hearer in list(self._listeners.values()):
                hearer.rank_lost(rank, cause, self.core.silence.get(rank))
            return
        context = message.body[0]
        listener = self._listeners.get(context)
        if listener is not None:
            listener.said(message)
        elif message.say in (Say.broken, Say.left) and context not in self._retired:
            self._early.setdefault(context, []).append(message)  # of a group that we have yet to make
        elif message.say is Say.where:
            self.tell([message.origin], Say.here, context, message.body[1], False, b"", "")


def _ignore(*_: object) -> None:
    pass
