"""The asyncio shell of the control plane: links in, links out, and who listens.

One exists in each process and job. Groups subscribe with their context; a loss is told to all of them,
a message to the one that it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from aiodist.control.core import ControlCore, Deliver, Effect, Transmit
from aiodist.control.messages import Message, Say, decode
from aiodist.errors import WireError


class Link(Protocol):
    """What the plane needs of a connection to a neighbour."""

    def send(self, message: bytes) -> None:
        """Queue one message."""

    def close(self) -> None:
        """Say goodbye and close."""

    def kill(self) -> None:
        """Close at once, without goodbye."""


class Listener(Protocol):
    """What a group hears."""

    def rank_lost(self, rank: int, cause: str) -> None:
        """A global rank is gone."""

    def said(self, message: Message) -> None:
        """A message for this group arrived."""


class ControlPlane:
    """One process's place among the control links.

    Args:
        rank: global rank of this process.
        size: number of ranks of the job.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.core = ControlCore(rank, size)
        self.rank = rank
        self.size = size
        self._links: dict[int, Link] = {}
        self._listeners: dict[int, Listener] = {}
        self._early: dict[int, list[Message]] = {}
        self._retired: set[int] = set()
        self._closed = False

    # ── links ────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, neighbour: int, link: Link) -> None:
        """A link to a neighbour is up."""
        self._links[neighbour] = link

    def awaited(self) -> set[int]:
        """Neighbours whose link is not up yet."""
        return set(self.core.neighbours) - self._links.keys() - self.core.lost.keys()

    def received(self, neighbour: int, data: bytes) -> None:
        """Bytes of one message came from a neighbour. Nonsense costs the neighbour its membership."""
        if self._closed:
            return
        try:
            message = decode(data)
        except WireError as error:
            self.lose(neighbour, f"spoke nonsense on its control link ({error})")
            return
        self._carry_out(self.core.receive(neighbour, message))

    def ended(self, neighbour: int, goodbye: bool, cause: str) -> None:
        """A link ended; without goodbye it is a loss."""
        if self._closed:
            return
        self._links.pop(neighbour, None)
        if goodbye:
            self.core.depart(neighbour)
        else:
            self.lose(neighbour, cause)

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, context: int, listener: Listener) -> None:
        """Hear what concerns a group. What was said of it before is told now."""
        self._listeners[context] = listener
        for message in self._early.pop(context, ()):
            listener.said(message)
        for rank, cause in list(self.core.lost.items()):
            listener.rank_lost(rank, cause)

    def unsubscribe(self, context: int) -> None:
        """The group is gone for good, or this rank is no member; what is still said of it is dropped."""
        self._listeners.pop(context, None)
        self._early.pop(context, None)
        self._retired.add(context)

    def lose(self, rank: int, cause: str) -> None:
        """This process noticed that a rank is gone."""
        if not self._closed:
            self._carry_out(self.core.lose(rank, cause))

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
        self._closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._listeners.clear()

    def kill(self) -> None:
        """Drop every link without a word, as a crash would."""
        self._closed = True
        for link in self._links.values():
            link.kill()
        self._links.clear()
        self._listeners.clear()

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, effects: list[Effect]) -> None:
        deliveries: list[Message] = []
        for effect in effects:
            match effect:
                case Transmit(neighbour, message):
                    link = self._links.get(neighbour)
                    if link is not None:
                        link.send(message.encode())
                case Deliver(message):
                    deliveries.append(message)
        for message in deliveries:  # after the sends: a group that breaks must not delay the news
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if message.say is Say.lost:
            rank, cause = message.body
            for hearer in list(self._listeners.values()):
                hearer.rank_lost(rank, cause)
            return
        context = message.body[0]
        listener = self._listeners.get(context)
        if listener is not None:
            listener.said(message)
        elif message.say in (Say.broken, Say.left) and context not in self._retired:
            self._early.setdefault(context, []).append(message)  # of a group that we have yet to make
        elif message.say is Say.where:
            self.tell([message.origin], Say.here, context, message.body[1], False, b"", "")
