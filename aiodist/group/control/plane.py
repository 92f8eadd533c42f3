"""The asyncio shell of the control plane: links in, links out, and who listens.

One exists in each process and job. Groups subscribe with their context; a loss is told to all of them,
a message to the one that it names.

Before a loss is declared here, all that the neighbours have written is read: the dead rank's last messages,
and that the others have given up this process meanwhile, which was stopped, say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from aiodist.base.errors import Tampered, WireError
from aiodist.base.recent import Recent
from aiodist.group.control.clocks import stamp_of
from aiodist.group.control.core import ControlCore, Deliver, Drop, Effect, Transmit
from aiodist.group.control.early import Early
from aiodist.group.control.heartbeat import MAX_WHERE, IsStopped, Signs
from aiodist.group.control.liveness import Blocked, LoopState, Patience
from aiodist.group.control.messages import EVERYBODY, PING, Message, Say, decode
from aiodist.group.control.resend_buffer import Unsaid
from aiodist.observe.recorder import Recorder

logger = logging.getLogger("aiodist.group.control")


class NeighbourLink(Protocol):
    """A connection to a neighbour, as the plane needs it; `transport.ControlLink` says more."""

    def send(self, message: bytes) -> None:
        """Queue one message."""

    def post(self, message: bytes) -> None:
        """Send from any thread; the message is dropped where the peer does not read."""

    def drain(self) -> None:
        """Deliver now what has reached this process already."""

    def close(self) -> None:
        """Say goodbye and close."""

    def kill(self) -> None:
        """Close at once, without goodbye."""


class ControlListener(Protocol):
    """A group, as the plane tells it of events."""

    def rank_lost(self, rank: int, cause: str, silence: float | None) -> None:
        """Note that a global rank is gone, so many seconds after its last sign of life (None: unknown)."""

    def rank_left(self, rank: int) -> None:
        """Note that a global rank has closed its world: it is in no group any more."""

    def ranks_blocked(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """Note that the loops of these global ranks do not turn. Called at every heartbeat meanwhile."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Note that messages between this process and a global rank were altered: some are missing."""

    def said(self, message: Message) -> None:
        """Take a message for this group."""


class ControlPlane:
    """One process's place among the control links.

    Args:
        rank: global rank of this process.
        size: number of ranks of the job.
        exposed: see `transport.Endpoint`.

    Attributes:
        on_lost: called with each rank that is lost, before the groups are told: whatever else connects this
            process with it has to end.
        on_proven: called with each rank whose end this process has seen for itself, then.
    """

    def __init__(self, rank: int, size: int, exposed: bool = False) -> None:
        self.core = ControlCore(rank, size)
        self.exposed = exposed
        self.rank = rank
        self.size = size
        self.on_lost: Callable[[int], object] = _ignore
        self.on_proven: Callable[[int], object] = _ignore
        self._links: dict[int, NeighbourLink] = {}
        self._listeners: dict[int, ControlListener] = {}
        self._early = Early()
        self._unsaid = Unsaid()
        self._retired = Recent()
        self._parted: set[int] = set()
        self._closed = False
        self._signs: Signs | None = None
        self._draining = False
        self._ends: list[tuple[int, str]] = []  # links that ended while all were read

    # ── links ────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, neighbour: int, link: NeighbourLink) -> None:
        """Take a link to a neighbour. One with a rank that was given up is closed."""
        if neighbour in self.core.lost or self._closed:
            link.kill()
            return
        if (torn := self._links.get(neighbour)) is not None:
            torn.kill()  # it was altered on the way, and the neighbour was the first to see it
            self.tampered(neighbour, Tampered())
        self._links[neighbour] = link
        if self._signs is not None:
            self._signs.attach(neighbour)
        for data in self._unsaid.take(neighbour):
            link.send(data)

    def awaited(self) -> set[int]:
        """The neighbours whose link is not up yet."""
        return set(self.core.neighbours) - self._links.keys() - self.core.lost.keys()

    def received(self, neighbour: int, data: bytes) -> None:
        """Take the bytes of one message from a neighbour. Nonsense costs the neighbour its membership."""
        if self._closed or neighbour in self.core.lost:
            return
        try:
            message, stamp = None, None
            if data[: len(PING)] == PING:
                stamp = stamp_of(data)
            else:
                message = decode(data)
                self.core.check(message)
        except WireError as error:
            self.lose(neighbour, f"spoke nonsense on its control link ({error})")
            return
        if self._signs is not None:
            self._signs.heard(neighbour, message)
            if stamp is not None:
                self._signs.compare(neighbour, stamp)
        if message is None:
            return
        if message.say is Say.lost and not self._draining:
            accused, believed = message.body[0], message.origin not in self.core.lost
            logger.debug(
                "rank %d hears of rank %d that rank %d is lost", self.core.rank, message.origin, accused
            )
            self._hear([accused])  # its last messages, before its link is closed
            if believed and message.origin in self.core.lost and accused not in self.core.lost:
                self._declare_losses()
                return  # the accused had accused first, and is watched from here: see rule 3 of the core
        self._carry_out(self.core.receive(neighbour, message))
        self._declare_losses()

    def ended(self, neighbour: int, goodbye: bool, cause: str) -> None:
        """Note that a link ended; without goodbye it is a loss."""
        if self._closed:
            return
        self._links.pop(neighbour, None)
        if goodbye:
            self.core.depart(neighbour)
            self._unsaid.take(neighbour)
            self._forget(neighbour)
        elif self._draining:
            self._ends.append((neighbour, cause))
        else:
            self.lose(neighbour, cause)

    def tampered(self, neighbour: int, error: Tampered) -> None:
        """Note that a link was ended because what was sent on it was altered. The neighbour is not lost, and
        may be linked anew: what it is to be told waits for that. Groups that hold it cannot go on."""
        if self._closed:
            return
        self._links.pop(neighbour, None)
        self._unsaid.torn(neighbour)
        if self._signs is not None:
            self._signs.torn(neighbour)
        named = Tampered(f"between rank {self.rank} and rank {neighbour} {error.message}")
        for hearer in list(self._listeners.values()):
            hearer.tampered(neighbour, named)

    # ── signs of life ────────────────────────────────────────────────────────────────────────────────

    def watch(
        self, loop: asyncio.AbstractEventLoop, patience: Patience, recorder: Recorder | None = None
    ) -> None:
        """Ping the neighbours from now on, and find out who is silent.

        Args:
            loop: its timer and clock; it runs, or is about to.
            patience: the limits.
            recorder: is told how far the neighbours' clocks are apart from its own.
        """
        self._signs = Signs(self, loop, patience, recorder)
        self.core.avoided = self._signs.blocked
        for neighbour in self._links:
            self._signs.attach(neighbour)

    def see(self, rank: int, is_stopped: IsStopped) -> None:
        """Have the process of a rank, which is on this host, checked by `is_stopped`."""
        if self._signs is not None and rank not in self.core.lost:
            self._signs.see(rank, is_stopped)

    def blocked(self) -> dict[int, str]:
        """The ranks whose loops do not turn, as far as is known, each in words (`Blocked.describe`)."""
        return {} if self._signs is None else self._signs.describe()

    def quiet(self, rank: int) -> bool:
        """Whether the loop of a neighbour has given no sign of late, in time in which this one turned."""
        return self._signs is not None and self._signs.quiet(rank)

    def warn(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """Tell the groups whose loops do not turn."""
        for hearer in list(self._listeners.values()):
            hearer.ranks_blocked(blocked, now)

    def ping(self, rank: int, message: bytes) -> None:
        """Send a neighbour bytes that are no `Message`."""
        link = self._links.get(rank)
        if link is not None:
            link.send(message)

    # Called by the watchdog, in its own thread, while the loop does not turn. The loop may come to life at
    # any time, so nothing is changed here but a flag.

    @property
    def turns(self) -> int:
        """A number that changes whenever the loop turns."""
        return 0 if self._signs is None else self._signs.turns

    def say_blocked(self, seconds: float, where: str) -> None:
        """Tell everybody that this process lives, and that its loop does not turn."""
        signs = self._signs
        if signs is not None:
            signs.confess()
            self._post(
                Say.blocked, self.rank, int(LoopState.blocked), round(seconds * 1000), where[:MAX_WHERE]
            )

    def say_ended(self, cause: str) -> None:
        """Tell everybody that this process will take no further part."""
        self._post(Say.lost, self.rank, cause, -1)

    def _post(self, say: Say, *body: Any) -> None:
        if self._closed or self.rank in self.core.lost:
            return
        data = self.core.notice(say, *body).encode()
        for link in list(self._links.values()):
            link.post(data)

    def hear(self) -> None:
        """Take in all that the neighbours have written, before something is judged without it."""
        self._hear(list(self._links))
        self._declare_losses()

    def _forget(self, rank: int) -> None:
        if self._signs is not None:
            self._signs.detach(rank)

    def _hear(self, neighbours: Iterable[int]) -> None:
        """Drain links. Losses that this brings to light are kept for `_declare_losses`."""
        if self._draining:
            return
        self._draining = True
        try:
            for neighbour in neighbours:
                link = self._links.get(neighbour)
                if link is not None:
                    link.drain()
        finally:
            self._draining = False

    def _declare_losses(self) -> None:
        """Declare the losses that came to light in `_hear`."""
        while self._ends and not self._draining:
            self._lose(*self._ends.pop(0))

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, context: int, listener: ControlListener) -> None:
        """Have a group told what concerns it. What was said of it before is told now."""
        self._listeners[context] = listener
        for message in self._early.take(context):
            listener.said(message)
        for rank, cause in list(self.core.lost.items()):
            listener.rank_lost(rank, cause, self.core.silence.get(rank))
        for rank in list(self._parted):
            listener.rank_left(rank)

    def part(self, rank: int) -> None:
        """Tell the groups that a rank closes its world, as it said."""
        if rank not in self._parted:
            self._parted.add(rank)
            for hearer in list(self._listeners.values()):
                hearer.rank_left(rank)

    def unsubscribe(self, context: int) -> None:
        """Forget a group that is gone for good, or not this rank's; what is still said of it is dropped."""
        self._listeners.pop(context, None)
        self._early.take(context)
        self._retired.add(context)

    def lose(self, rank: int, cause: str, proven: bool = False) -> None:
        """Give up a rank that is gone, as this process noticed. First all that was said before is read.

        Args:
            rank: who.
            cause: how that was noticed.
            proven: whether the kernel says that its process has ended: then it is dead, not only silent.
        """
        if self._closed:
            return
        self._hear(list(self._links))
        self._lose(rank, cause, proven)
        self._declare_losses()
        if proven:  # its loss may have been known before
            self.on_proven(rank)

    def _lose(self, rank: int, cause: str, proven: bool = False) -> None:
        if self._closed:  # by what was heard
            return
        silence = None if self._signs is None else self._signs.silence(rank)
        logger.debug("rank %d gives up rank %d: %s", self.core.rank, rank, cause)
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
        for link in self.stop():
            link.close()

    def kill(self) -> None:
        """Drop every link without goodbye, as a crash would."""
        for link in self.stop():
            link.kill()

    def stop(self) -> list[NeighbourLink]:
        """Hear and tell nothing any more → the links, whose ends are the caller's."""
        self._closed = True
        self._stop_signs()
        links = list(self._links.values())
        self._links.clear()
        self._listeners.clear()
        return links

    def _stop_signs(self) -> None:
        """Give and await no signs of life any more."""
        if self._signs is not None:
            self._signs.close()
        self._signs = None

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, effects: list[Effect]) -> None:
        deliveries: list[Message] = []
        dropped: list[int] = []
        for effect in effects:
            match effect:
                case Transmit(neighbour, message):
                    data = message.encode()
                    self._unsaid.note(neighbour, data, message.target == EVERYBODY)
                    link = self._links.get(neighbour)
                    if link is not None:
                        link.send(data)
                case Deliver(message):
                    deliveries.append(message)
                case Drop(rank):
                    dropped.append(rank)
        for rank in dropped:  # after the sends: it is told so itself
            link = self._links.pop(rank, None)
            if link is not None:
                link.kill()
            self._unsaid.take(rank)
            self._forget(rank)
            self.on_lost(rank)
        for message in deliveries:  # after the sends: a group that breaks must not delay the news
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if message.say is Say.lost:
            rank, cause, _ = message.body
            if rank == self.rank:
                self._stop_signs()
            for hearer in list(self._listeners.values()):
                hearer.rank_lost(rank, cause, self.core.silence.get(rank))
            return
        if message.say is Say.blocked:
            if self._signs is not None and 0 <= message.body[0] < self.size:
                self._signs.learn(message)
            return
        context = message.body[0]
        listener = self._listeners.get(context)
        if listener is not None:
            listener.said(message)
        elif message.say in (Say.broken, Say.left) and context not in self._retired:
            self._early.keep(context, message)  # of a group that we have yet to make
        elif message.say is Say.where:
            self.tell([message.origin], Say.here, context, message.body[1], False, b"", "")


def _ignore(*_: object) -> None:
    pass
