"""One group's ear on the control plane: who is missing, who disagrees, who is gone.

While all is well nothing here runs. An operation without progress asks the leader (the first member
that has not left), which asks all members what they issued under that number:

    member ──stalled──▶ leader ──where──▶ members ──here──▶ leader ──missing──▶ who asked
                                                              └────broken (mismatch)──▶ everybody
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from aiodist.control.inquiry import Absence, Disagreement, Inquiry
from aiodist.control.messages import Message, Say
from aiodist.control.plane import ControlPlane
from aiodist.errors import CollectiveMismatch, Evicted, GroupBroken, PeerLost, WireError, name_ranks
from aiodist.group.breakage import pack, unpack
from aiodist.group.flight import Flight
from aiodist.types import describe_signature

if TYPE_CHECKING:
    from aiodist.group.core import GroupCore

logger = logging.getLogger("aiodist")

ANSWERS = 0.25  # seconds that members have to answer before a verdict is given without them
AGAIN = 0.05  # seconds between rounds of questions once members disagree
ROUNDS = 6  # of questions, at most
ROOM = 64  # answers that are kept until those about operations that have ended are thrown away
SUSPICION = 2.0  # seconds after which a mismatch seen here is told without the leader


class Breaks(Protocol):
    """Breaks the group."""

    def __call__(self, error: GroupBroken, *, tell: bool = True) -> None:
        """As `GroupCore._break`."""


class Watch:
    """Listens for one group, and speaks for it. Ranks are global.

    Args:
        group: the group.
        flight: what it has issued.
        breaks: breaks it.
        control: the process's control plane.
        loop: for the time limits of inquiries.
    """

    def __init__(
        self,
        group: GroupCore,
        flight: Flight,
        breaks: Breaks,
        control: ControlPlane,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._group = group
        self._flight = flight
        self._breaks = breaks
        self._control = control
        self._loop = loop
        self._context = group.context
        self._members = frozenset(group.ranks)
        self._inquiries: dict[int, Inquiry] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._left: dict[int, int] = {}
        self._suspected: set[int] = set()
        self.absent: dict[int, tuple[int, ...]] = {}
        self._room = ROOM

    def start(self) -> None:
        """Begin to listen. What was said of the group before is heard now."""
        self._control.subscribe(self._context, self)

    def close(self) -> None:
        """Stop listening, for good."""
        self._control.unsubscribe(self._context)
        self.rest()

    def rest(self) -> None:
        """Ask no more questions."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._inquiries.clear()

    # ── what this rank has to say ────────────────────────────────────────────────────────────────────

    def ask(self, seq: int) -> None:
        """An operation makes no progress: ask the leader."""
        self._control.tell([self._leader()], Say.stalled, self._context, seq)

    def suspect(self, seq: int, peer: int, theirs: bytes) -> None:
        """A peer's signature differs from ours. The leader finds out what all said; if it does not, what is
        known here must do."""
        if seq in self._suspected:
            return
        self._suspected.add(seq)
        call = self._flight.call(seq)
        said = {
            peer: describe_signature(theirs),
            self._control.rank: call.describe() if call else "no such operation",
        }
        self._later(SUSPICION, lambda: self._breaks(CollectiveMismatch(said)))
        self.ask(seq)

    def tell_broken(self, error: GroupBroken) -> None:
        """The group is broken: tell all members."""
        self._control.flood(Say.broken, self._context, *pack(error))

    def leave(self, issued: int) -> None:
        """This rank closes the group, having issued so many collectives."""
        self._control.flood(Say.left, self._context, self._control.rank, issued)

    def gone(self, seq: int) -> PeerLost | None:
        """Why a collective of this number can never complete: a member left before it. None if none did."""
        early = [rank for rank, issued in self._left.items() if seq >= issued]
        return self._departure(early) if early else None

    # ── Listener ─────────────────────────────────────────────────────────────────────────────────────

    def rank_lost(self, rank: int, cause: str, silence: float | None = None) -> None:
        """A rank is gone without goodbye."""
        if rank == self._control.rank:
            self._breaks(
                Evicted(
                    f"the others count this process as lost: {cause}",
                    hint="They went on, or ended, without it: leave, and join anew",
                ),
                tell=False,
            )
        elif rank in self._members and rank not in self._left:
            # Everybody hears of a loss anyway.
            self._breaks(PeerLost([rank], cause, silence=silence), tell=False)

    def rank_left(self, rank: int) -> None:
        """A rank has left them all. Of a group that it had it said so before; this one it never made."""
        if rank in self._members and rank not in self._left:
            self._leaves(rank, 0)

    def _leaves(self, rank: int, issued: int) -> None:
        self._left[rank] = issued
        if any(seq >= issued for seq in self._flight.collectives()):
            self._breaks(self._departure([rank]), tell=False)

    def said(self, message: Message) -> None:
        """A message for this group. A member that speaks nonsense is as good as lost."""
        try:
            self._hear(message)
        except (WireError, TypeError, ValueError) as error:
            self._control.lose(message.origin, f"spoke nonsense on the control plane ({error})")

    def _hear(self, message: Message) -> None:
        if message.origin not in self._members:
            return
        match message.say:
            case Say.broken:
                self._breaks(unpack(message.body[1], message.body[2:]), tell=False)
            case Say.left:
                _, rank, issued = message.body
                self._leaves(rank, issued)
            case Say.stalled:
                self._inquire(message.body[1], message.origin)
            case Say.where:
                self._answer(message.body[1], message.origin)
            case Say.here:
                self._learn(message)
            case Say.missing:
                _, seq, ranks = message.body
                if len(self.absent) >= self._room:
                    pending = set(self._flight.collectives())
                    self.absent = {s: r for s, r in self.absent.items() if s in pending}
                    self._room = 2 * len(self.absent) + ROOM
                self.absent[seq] = tuple(ranks)
                if ranks:
                    call = self._flight.call(seq)
                    what = call.describe() if call else "an operation"
                    logger.info(
                        "%s #%d of group '%s' waits for %s", what, seq, self._group.name, name_ranks(ranks)
                    )
            case _:
                raise WireError(f"{message.say.name} is not said to a group")

    # ── the leader's part ────────────────────────────────────────────────────────────────────────────

    def _leader(self) -> int:
        return next((rank for rank in self._group.ranks if rank not in self._left), self._group.ranks[0])

    def _inquire(self, seq: int, asker: int) -> None:
        inquiry = self._inquiries.get(seq)
        if inquiry is None:
            inquiry = self._inquiries[seq] = Inquiry(self._members - self._left.keys(), seq)
            inquiry.askers.add(asker)
            self._question(inquiry)
        else:
            inquiry.askers.add(asker)

    def _question(self, inquiry: Inquiry) -> None:
        asked = inquiry.begin()
        number = inquiry.rounds
        self._later(ANSWERS, lambda: self._judge(inquiry) if inquiry.rounds == number else None)
        self._control.tell(asked, Say.where, self._context, inquiry.seq)

    def _answer(self, seq: int, leader: int) -> None:
        arrived = seq < self._group.issued_count()
        call = self._flight.call(seq) if arrived else None
        signature, words = (call.signature, call.describe()) if call else (b"", "")
        self._control.tell([leader], Say.here, self._context, seq, arrived, signature, words)

    def _learn(self, message: Message) -> None:
        _, seq, arrived, signature, words = message.body
        inquiry = self._inquiries.get(seq)
        if inquiry is not None:
            inquiry.answer(message.origin, bool(arrived), bytes(signature), str(words))
            if inquiry.complete():
                self._judge(inquiry)

    def _judge(self, inquiry: Inquiry) -> None:
        if self._inquiries.get(inquiry.seq) is not inquiry:
            return
        match inquiry.verdict():
            case Disagreement(_, partial) if partial and inquiry.rounds < ROUNDS:
                # Who is about to arrive shall be heard, too. The group is beyond saving, so there is time.
                number = inquiry.rounds
                self._later(AGAIN, lambda: self._question(inquiry) if inquiry.rounds == number else None)
            case Disagreement(said):
                self._breaks(CollectiveMismatch(said))
            case Absence(ranks):
                del self._inquiries[inquiry.seq]
                self._control.tell(inquiry.askers, Say.missing, self._context, inquiry.seq, ranks)

    # ── small things ─────────────────────────────────────────────────────────────────────────────────

    def _departure(self, ranks: list[int]) -> PeerLost:
        return PeerLost(
            ranks,
            "it closed the group while others still needed it",
            hint="Await all operations on every rank before closing the group",
        )

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = self._loop.call_later(delay, run)
        self._timers.add(timer)
