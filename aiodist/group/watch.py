"""A group's listener on the control plane: ranks that are missing, disagree, or are gone.

While all is well nothing here runs. An operation without progress asks the leader (the first member
that has not left), which asks all members what they issued under that number:

    member ──stalled──▶ leader ──where──▶ members ──here──▶ leader ──missing──▶ who asked
                                                              └────broken (mismatch)──▶ everybody
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from aiodist.backends.base import Operation, Sent
from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    Evicted,
    GroupBroken,
    PeerLost,
    Tampered,
    WireError,
    name_ranks,
)
from aiodist.base.sanitize import one_line
from aiodist.base.types import describe_signature
from aiodist.group.breakage import departure, pack, unpack
from aiodist.group.control.inquiry import Absence, Disagreement, Inquiry
from aiodist.group.control.liveness import Blocked, LoopState
from aiodist.group.control.messages import Message, Say
from aiodist.group.control.plane import ControlPlane
from aiodist.group.deadlines import MOST, Flight
from aiodist.group.roster import Roster

logger = logging.getLogger("aiodist.group.watch")

V = TypeVar("V")

ANSWERS = 0.25  # seconds that members have to answer before a verdict is given without them
AGAIN = 0.05  # seconds between rounds of questions once members disagree
ROUNDS = 6  # of questions, at most
ROOM = 64  # answers and questions that are kept until those about operations that have ended are thrown away
COUNTED = 8192  # numbers that `left` says to all; a message on the control plane is small
SHOWN = 4  # members whose problems an error tells
ASKED = 4 * MOST  # about so many a member asks while one inquiry lasts; of more it is asked again
SUSPICION = 2.0  # seconds after which a mismatch seen here is told without the leader


class Breaks(Protocol):
    """A function that breaks the group."""

    def __call__(self, error: GroupBroken, *, tell: bool = True) -> None:
        """Break the group by an error; see `GroupCore.break_group`."""


class Noted(dict[int, V]):
    """Notes about collectives, by number. Where there are many, those of collectives that have ended go.

    Args:
        pending: gives the numbers of those that have not ended.
    """

    def __init__(self, pending: Callable[[], Iterable[int]]) -> None:
        super().__init__()
        self._pending = pending
        self._room = ROOM

    def note(self, seq: int, value: V) -> None:
        """Note something of a collective."""
        if len(self) >= self._room:
            for ended in self.keys() - set(self._pending()):
                del self[ended]
            self._room = 2 * len(self) + ROOM
        self[seq] = value


def _ignore(_rank: int, _sent: Sent | None) -> None:
    pass


class Watch:
    """The listener and speaker of one group, to which its backend also reports. Ranks are global.

    Args:
        roster: the group's members.
        flight: what it has issued.
        control: the process's control plane.
        loop: for the time limits of inquiries.
        begun: whether this rank has begun the collective of a number.
        seen: other members, by group rank, that are seen to have begun it.
        breaks: breaks the group.
        left: called with a member that has closed this group, and what it had sent (`Carriers.sent`), or None
            where that is not known.
        number: gives the place among the user's calls of a collective's number.
    """

    def __init__(
        self,
        roster: Roster,
        flight: Flight,
        control: ControlPlane,
        loop: asyncio.AbstractEventLoop,
        begun: Callable[[int], bool],
        seen: Callable[[int], set[int]],
        breaks: Breaks,
        left: Callable[[int, Sent | None], None] = _ignore,
        number: Callable[[int], int] = int,
    ) -> None:
        self._roster = roster
        self._flight = flight
        self._control = control
        self._loop = loop
        self._begun = begun
        self._seen = seen
        self._breaks = breaks
        self._tell_left = left
        self._number = number
        self._context = roster.context
        self._members = frozenset(roster.ranks)
        self._inquiries: dict[int, Inquiry] = {}
        self._asks: dict[int, set[int]] = {}  # member → numbers that inquiries of its go on about
        self._timers: set[asyncio.TimerHandle] = set()
        self._left: dict[int, int] = {}
        self._suspected: set[int] = set()
        self._warned: dict[int, LoopState] = {}  # whose loops do not turn, and which reason was logged
        self.absent: Noted[Absence] = Noted(flight.collectives)
        self._asked: Noted[int] = Noted(flight.collectives)  # how often, in vain

    def start(self) -> None:
        """Begin to listen. What was said of the group before is heard now."""
        self._control.subscribe(self._context, self)

    def close(self) -> None:
        """Stop listening, for good."""
        self._control.unsubscribe(self._context)
        self.stop_asking()

    def stop_asking(self) -> None:
        """Ask no more questions."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._inquiries.clear()
        self._asks.clear()

    # ── what this rank tells ─────────────────────────────────────────────────────────────────────────

    def ask(self, seq: int) -> None:
        """Ask the leader, or the member after those that did not answer, about a stalled operation."""
        tried = 0 if seq in self.absent else self._asked.get(seq, 0)
        self._control.tell([self._leader(tried)], Say.stalled, self._context, seq)
        self._asked.note(seq, tried + 1)

    def tell_broken(self, error: GroupBroken) -> None:
        """Tell all members that the group is broken."""
        self._control.flood(Say.broken, self._context, *pack(error))

    def leave(self, issued: int, sent: Sent) -> None:
        """Tell all members that this rank closes the group, having issued so many collectives, and sent so
        many messages."""
        if sum(map(len, sent)) <= COUNTED:
            self._control.flood(Say.left, self._context, self._control.rank, issued, sent)
            return
        counts = [dict(zip(row[::2], row[1::2], strict=True)) for row in sent]
        for member, rank in enumerate(self._roster.ranks):  # too many for one message: to each its own
            if rank != self._control.rank:
                its = tuple((member, row[member]) if member in row else () for row in counts)
                self._control.tell([rank], Say.left, self._context, self._control.rank, issued, its)

    def gone(self, seq: int) -> PeerLost | None:
        """The reason why a collective can never complete: a member left before this number. Else None."""
        early = [rank for rank, issued in self._left.items() if seq >= issued]
        return departure(early) if early else None

    def expired(self, operation: Operation, timeout: float, late: float) -> CollectiveTimeout:
        """Make the error of an operation whose time is up.

        Args:
            late: seconds for which this rank's own loop did not turn about that time.
        """
        call, ranks, me = operation.call, self._roster.ranks, self._control.rank
        blocked = self._control.blocked()
        message = call.message
        if message:
            found = self._other_side(operation, blocked)
        else:
            found = self.absent.get(call.seq) or self._guess(call.seq, blocked)
        trouble = [f"{self._name(me)} had not run its own event loop for {late:.1f} s"] if late else []
        trouble += [f"{self._name(rank)} {blocked[rank]}" for rank in ranks if rank in blocked]
        # What peers have written into shared memory says more than they do: also that one has come since. A
        # verdict on this rank, which was busy when asked, or came later, says nothing: it is here.
        seen = set() if message else {ranks[member] for member in self._seen(call.seq)}
        busy = [rank for rank in found.unheard if rank in seen and rank not in blocked]
        trouble += [f"{self._name(rank)} does not answer: its event loop is busy" for rank in busy]
        missing, unheard = (
            [rank for rank in names if rank not in seen and rank != me]
            for names in (found.ranks, found.unheard)
        )
        if not (missing or unheard):
            trouble.insert(0, "no matching send or recv was seen" if message else "all ranks had arrived")
        return CollectiveTimeout(timeout, missing, unheard, "; ".join(trouble[:SHOWN]))

    def trouble(self, peer: int) -> str:
        """The reason why a message of, or to, a group rank may be late: its loop does not turn; or ''."""
        rank = self._roster.ranks[peer] if peer >= 0 else -1
        blocked = self._control.blocked()
        return f"{self._name(rank)} {blocked[rank]}" if rank in blocked else ""

    def _other_side(self, operation: Operation, blocked: Mapping[int, str]) -> Absence:
        """Ranks that had not arrived at a message, as far as is known here: nobody asks about those. A rank
        whose loop does not turn, or has been silent of late, may have issued its side."""
        if operation.peer < 0:
            return Absence(())
        peer = self._roster.ranks[operation.peer]
        return Absence((), (peer,)) if peer in blocked or self._control.quiet(peer) else Absence((peer,))

    def _guess(self, seq: int, blocked: Mapping[int, str]) -> Absence:
        """Ranks that had not arrived at an operation, where no leader has said that yet."""
        inquiry = self._inquiries.get(seq)
        if inquiry is not None and isinstance(verdict := inquiry.verdict(), Absence):
            return verdict  # this is the leader, and asks
        silent = tuple(rank for rank in self._roster.ranks if rank in blocked)
        others = tuple(self._members - self._left.keys() - {self._control.rank})
        asked = tuple(rank for rank in self._able()[: self._asked.get(seq, 0)] if rank in others)
        return Absence((), silent or asked or others)

    # ── Reports of the backend, which speaks of group ranks ──────────────────────────────────────────

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """Note that a peer's signature differs from ours. The leader finds out what all said; if it does not,
        what is known here must do."""
        if seq in self._suspected:
            return
        peer = self._roster.ranks[peer]
        logger.debug("group '%s': rank %s has issued something else as #%s", self._roster.name, peer, seq)
        self._suspected.add(seq)
        call = self._flight.call(seq)
        said = {
            peer: describe_signature(theirs),
            self._control.rank: self._flight.described(call) if call else "no such operation",
        }
        self._later(SUSPICION, lambda: self._breaks(CollectiveMismatch(said)))
        self.ask(seq)

    @property
    def suspects(self) -> bool:
        """Whether a peer disagrees about a collective, and it is not known yet what all have issued."""
        return bool(self._suspected)

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Break the group: both sides of a message disagree."""
        self._breaks(CollectiveMismatch({self._roster.ranks[rank]: text for rank, text in said.items()}))

    def broken(self, error: GroupBroken) -> None:
        """Break the group: the backend can do no more work."""
        self._breaks(error)

    # ── Listener ─────────────────────────────────────────────────────────────────────────────────────

    def rank_lost(self, rank: int, cause: str, silence: float | None = None) -> None:
        """Note that a rank is gone without goodbye."""
        if rank == self._control.rank:
            self._breaks(
                Evicted(
                    f"the others count this process as lost: {cause}",
                    hint="They went on, or ended, without it: leave, and join again",
                ),
                tell=False,
            )
        elif rank in self._left:
            self._tell_left(rank, None)  # it has closed the group, and what was under way is over
        elif rank in self._members:
            self._loses(PeerLost([rank], cause, silence=silence))

    def _loses(self, error: PeerLost) -> None:
        """Break the group by a loss, of which all members learn by themselves. Those that had heard before
        that the lost one closes the group would go on, so one member tells all of it."""
        self._breaks(error, tell=False)
        me, lost = self._control.rank, self._control.core.lost
        here = (rank for rank in self._roster.ranks if rank not in self._left and rank not in lost)
        leader = next(here, me)  # this rank is lost, too, where the others have given it up
        if leader == me:
            self.tell_broken(error)
        else:
            self._control.tell([leader], Say.broken, self._context, *pack(error))

    def tampered(self, rank: int, error: Tampered) -> None:
        """Note that messages between this process and a rank were altered on the path."""
        if rank in self._members:
            self._breaks(error)

    def rank_left(self, rank: int) -> None:
        """Note that a rank has left all groups. It said so before of those it had; this one it never made."""
        if rank in self._members and rank not in self._left:
            self._leaves(rank, 0, None)

    def _leaves(self, rank: int, issued: int, sent: Sent | None) -> None:
        logger.debug("group '%s': rank %s left after %s collectives", self._roster.name, rank, issued)
        self._left[rank] = issued
        self._tell_left(rank, sent)
        if any(seq >= issued for seq in self._flight.collectives()):
            # Others may wait for this rank in an earlier one, and have no reason of their own to end it.
            self._breaks(departure([rank]))

    def ranks_blocked(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """Note loops that do not turn. If this rank waits for one, it logs that, once, and once more when
        another reason is known: as a warning if it is the first member whose loop turns, or exchanges
        messages with that one. A thousand lines would help nobody."""
        self._warned = {rank: state for rank, state in self._warned.items() if rank in blocked}
        here = self._members & blocked.keys() - self._left.keys()
        found = {rank for rank in here if self._warned.get(rank) is not blocked[rank].state}
        if not found or not len(self._flight):
            return
        first = next(r for r in self._roster.ranks if r not in self._left and r not in blocked)
        peers = {self._roster.ranks[peer] for peer in self._flight.peers()}
        collective = bool(self._flight.collectives())
        for rank in sorted(found):
            direct = rank in peers
            if direct or collective:
                self._warned[rank] = blocked[rank].state
                first_of_all = collective and first == self._control.rank
                level = logging.WARNING if direct or first_of_all else logging.INFO
                text = f"{self._name(rank)} {blocked[rank].describe(now)}"
                logger.log(level, "%s; group '%s' waits", text, self._roster.name)

    def said(self, message: Message) -> None:
        """Take a message for this group. A member that sends an invalid one counts as lost."""
        try:
            self._hear(message)
        except (WireError, TypeError, ValueError) as error:
            self._control.lose(message.origin, f"sent an invalid message on the control plane ({error})")

    def _hear(self, message: Message) -> None:
        if message.origin not in self._members:
            return
        match message.say:
            case Say.broken:
                error = unpack(message.body[1], message.body[2:])
                if isinstance(error, CollectiveTimeout):
                    error = error.as_read_by(self._control.rank, message.origin)
                logger.debug("group '%s': rank %d says that it is broken", self._roster.name, message.origin)
                self._breaks(error, tell=message.target == self._control.rank)
            case Say.left:
                _, rank, issued, sent = message.body
                self._leaves(rank, issued, sent or None)
            case Say.stalled:
                self._inquire(message.body[1], message.origin)
            case Say.where:
                self._answer(message.body[1], message.origin)
            case Say.here:
                self._learn(message)
            case Say.missing:
                _, seq, ranks, unheard = message.body
                if not all(type(rank) is int for rank in ranks + unheard):
                    raise WireError("ranks that are no numbers")
                self.absent.note(seq, Absence(ranks, unheard))
                if ranks or unheard:
                    call = self._flight.call(seq)
                    what = call.describe() if call else "an operation"
                    late = name_ranks(ranks + unheard)
                    number = self._number(seq)
                    logger.info("%s #%d of group '%s' waits for %s", what, number, self._roster.name, late)
            case _:
                raise WireError(f"{message.say.name} is not said to a group")

    # ── the leader's part ────────────────────────────────────────────────────────────────────────────

    def _leader(self, tried: int) -> int:
        """The first member that has not left and whose loop is not known to stand still, after so many that
        were asked and did not answer."""
        able = self._able()
        return able[min(tried, len(able) - 1)]

    def _able(self) -> list[int]:
        here = [rank for rank in self._roster.ranks if rank not in self._left] or list(self._roster.ranks)
        blocked = self._control.blocked()
        return [rank for rank in here if rank not in blocked] or here[:1]

    def _inquire(self, seq: int, asker: int) -> None:
        asks = self._asks.setdefault(asker, set())
        if len(asks) >= ASKED:
            return  # it makes numbers up, or asks again later
        asks.add(seq)
        inquiry = self._inquiries.get(seq)
        if inquiry is None:
            logger.debug("group '%s': rank %s asks who is missing in #%s", self._roster.name, asker, seq)
            inquiry = self._inquiries[seq] = Inquiry(self._members - self._left.keys(), seq)
            inquiry.askers.add(asker)
            self._question(inquiry)
        else:
            inquiry.askers.add(asker)

    def _question(self, inquiry: Inquiry) -> None:
        asked = inquiry.begin()
        number = inquiry.rounds
        self._later(ANSWERS, lambda: self._judge(inquiry) if inquiry.rounds == number else None)
        blocked = self._control.blocked()  # they would not read it, and a full window looks like a dead host
        asked = tuple(rank for rank in asked if rank not in blocked)
        self._control.tell(asked, Say.where, self._context, inquiry.seq)

    def _answer(self, seq: int, leader: int) -> None:
        arrived = self._begun(seq)
        call = self._flight.call(seq) if arrived else None
        signature, text = (call.signature, self._flight.described(call)) if call else (b"", "")
        self._control.tell([leader], Say.here, self._context, seq, arrived, signature, text)

    def _learn(self, message: Message) -> None:
        _, seq, arrived, signature, text = message.body
        inquiry = self._inquiries.get(seq)
        if inquiry is not None:
            inquiry.answer(message.origin, bool(arrived), bytes(signature), one_line(str(text)))
            if inquiry.complete():
                self._judge(inquiry)

    def _judge(self, inquiry: Inquiry) -> None:
        if self._inquiries.get(inquiry.seq) is not inquiry:
            return
        match inquiry.verdict():
            case Disagreement(_, partial) if partial and inquiry.rounds < ROUNDS:
                # Members about to arrive shall be heard, too. The group is broken anyway, so there is time.
                number = inquiry.rounds
                self._later(AGAIN, lambda: self._question(inquiry) if inquiry.rounds == number else None)
            case Disagreement(said):
                self._breaks(CollectiveMismatch(said))
            case Absence(ranks, unheard):
                del self._inquiries[inquiry.seq]
                for asker in inquiry.askers:
                    self._asks[asker].discard(inquiry.seq)
                self._control.tell(inquiry.askers, Say.missing, self._context, inquiry.seq, ranks, unheard)

    # ── small things ─────────────────────────────────────────────────────────────────────────────────

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._roster.hosts[self._roster.ranks.index(rank)]})"

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        def run() -> None:
            self._control.hear()  # where this loop was busy, what it waited for lies in its sockets
            if timer in self._timers:  # what was heard may have ended the group
                self._timers.discard(timer)
                action()

        timer = self._loop.call_later(delay, run)
        self._timers.add(timer)
