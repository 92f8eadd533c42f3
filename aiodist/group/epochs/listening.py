"""The listener to what members of one world say of membership, on its control links; and the speaker there.

It listens from the first moment of its world. Others may call, draft and decide before this process calls at
all. What they say is kept in the assembly of that call, which is made when the first of it is heard. The
control links of the old world carry it as long as that world lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set

from aiodist.base.errors import Evicted, Tampered, WireError
from aiodist.group.control.liveness import Blocked
from aiodist.group.control.messages import Message, Say
from aiodist.group.epochs.agreement import Agreements
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.world import World
from aiodist.group.membership.arbiter import Arbiter, MajorityArbiter, StoreArbiter
from aiodist.group.membership.assembly import Assembly
from aiodist.group.membership.messages import (
    Answer,
    Ask,
    Decided,
    Draft,
    Dropped,
    Leave,
    MemberMessage,
    Ready,
    Void,
    decode,
    encode,
)
from aiodist.group.membership.record import Record
from aiodist.group.process_group import ProcessGroup
from aiodist.group.roster import context_of

logger = logging.getLogger("aiodist.group.regroup")

EVICTED_HINT = "Leave, and join again: dist.join()"

_CALLS = 64  # of which what was said is kept


class Listener:
    """The listener of one process in one world.

    Args:
        job: what outlives the epoch.
        world: the epoch, linked.
        group: its group.
        on_decided: called when it is known that this world is an epoch, where its members say so.

    Attributes:
        changed: set at any news.
        decided: it is known that this world is an epoch, and no mere draft.
        over: this process takes no part any more.
        followed: this process goes on in another epoch.
        arbiter: of the calls for the next epoch.
        agreements: of its groups.
    """

    def __init__(
        self, job: Job, world: World, group: ProcessGroup, on_decided: Callable[[], None] | None
    ) -> None:
        self.changed = asyncio.Event()
        self.decided = False
        self.over = self.followed = False
        self._why_out = ""  # this process has no say any more
        self._job = job
        self._group = group
        self._core = core = group._core
        self._uids = world.uids
        self._control = world.control
        self._loop = asyncio.get_running_loop()
        self._context = context_of(core.roster.context, 0, [], "membership")
        self._calls: dict[int, Assembly] = {}
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self._on_decided = on_decided
        self.arbiter: Arbiter = StoreArbiter(job.store, job.run, job.show)
        if world.store_hosts:
            self.arbiter = MajorityArbiter(self._control.rank, len(self._uids), self.say, self._dead)
        self.agreements = Agreements(
            core.family, self.say, self._reachable, self._give_up, self.evicted, self.arbiter
        )
        self._control.subscribe(self._context, self)
        self._control.on_proven = self._recount

    def assembly(self, call: int) -> Assembly:
        """The assembly of a call for the next epoch."""
        assembly = self._calls.get(call)
        if assembly is None:
            if len(self._calls) >= _CALLS:
                del self._calls[min(self._calls)]
            assembly = Assembly(call, self._group.epoch, self._control.rank, self._uids)
            for rank in self._gone:
                assembly.lose(rank)
            self._calls[call] = assembly
        return assembly

    # ── what is said ─────────────────────────────────────────────────────────────────────────────────

    def say(self, target: int | None, message: MemberMessage) -> None:
        """Tell a message to a rank, or to all others (None)."""
        if self.over:
            return
        if target is None:
            self._control.flood(Say.membership, self._context, encode(message))
        else:
            self._control.tell([target], Say.membership, self._context, encode(message))

    def confirm(self, decided: Decided) -> None:
        """Tell on this world's own links, for newcomers, that its own epoch was decided."""
        if decided.record.epoch == self._group.epoch and not self.decided:
            self.decided = True
            self.say(None, decided)
            if self._on_decided is not None:
                self._on_decided()
                self._on_decided = None  # it knows the epoch before, which ends here

    def leave(self) -> None:
        """Tell the others that this process takes no part any more: the world ends here."""
        if self.over:
            return
        if not self.followed and self._core.error is None and self.decided:
            self._job.finished = (self._group.epoch, len(self._uids))
        for answer in self.agreements.last_answers():
            self.say(None, answer)
        self.say(None, Leave())
        self._job.hasty = bool(self._control.core.lost)
        self.over = True
        self.changed.set()
        self._control.unsubscribe(self._context)

    # ── what is heard ────────────────────────────────────────────────────────────────────────────────

    def rank_lost(self, rank: int, cause: str, silence: float | None = None) -> None:
        """Note that a member is lost."""
        if rank == self._control.rank:
            self._be_out(f"the others count this process as lost: {cause}")
        else:
            self._out(rank)

    def rank_left(self, rank: int) -> None:
        """Do nothing: a goodbye is said here first."""

    def ranks_blocked(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """Do nothing: the groups handle it."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Do nothing: no member is excluded because of that."""

    def said(self, message: Message) -> None:
        """Take a message. A member that sends an invalid one counts as lost."""
        if message.say is not Say.membership:
            return
        try:
            self.hear(message.origin, decode(message.body[1]))
        except WireError as error:
            self._control.lose(message.origin, f"sent an invalid message about membership ({error})")

    def hear(self, origin: int, message: MemberMessage) -> None:
        """Take a member's message."""
        match message:
            case Ready() | Draft() | Dropped() | Void():
                self.assembly(message.call).hear(origin, message, self._loop.time())
            case Decided(_, record):
                self.confirm(message)
                self.assembly(message.call)
                for assembly in self._calls.values():  # also of a call that the others know nothing of
                    assembly.hear(origin, message, self._loop.time())
                self._evicted_by(record)
            case Ask() | Answer():
                self.agreements.hear(origin, message)
            case Leave():
                self._left.add(origin)
                self._out(origin)
                self._control.part(origin)
            case _:  # of a ballot
                if isinstance(self.arbiter, MajorityArbiter):
                    self.arbiter.hear(origin, message)
        self.changed.set()

    def _evicted_by(self, record: Record) -> None:
        if record.epoch == self._group.epoch + 1 and self._job.uid not in record.members:
            error = self._be_out(f"epoch {record.epoch} was formed without this process")
            self._core.break_group(error, tell=False)

    def replaced(self) -> None:
        """Take no part any more: all ranks have begun anew, while this process was cut off from the store."""
        error = self._be_out("the job has begun anew without this process, which was cut off from the store")
        for core in self._core.family:
            core.break_group(error, tell=False)

    def _be_out(self, why: str) -> Evicted:
        self._why_out = self._why_out or why
        self.agreements.lose()
        self.changed.set()
        return Evicted(why, hint=EVICTED_HINT)

    def evicted(self) -> Evicted | None:
        """Why this process has no say in this epoch any more, as an error; None while it has."""
        return Evicted(self._why_out, hint=EVICTED_HINT) if self._why_out else None

    def _give_up(self, ranks: Set[int]) -> None:
        """Count members as gone: others have gone on without them."""
        for rank in sorted(ranks & self._reachable()):
            self._control.lose(rank, "other members do not reach it")
            self._out(rank)

    def _out(self, rank: int) -> None:
        logger.debug("rank %d takes no part in epoch %d any more", rank, self._group.epoch)
        self._gone.add(rank)
        for assembly in self._calls.values():
            assembly.lose(rank)
        self._recount(rank)
        self.agreements.lose()
        self.changed.set()

    def _recount(self, rank: int) -> None:
        """Count the votes anew: one more member may be proven dead, and perhaps that is a majority."""
        if isinstance(self.arbiter, MajorityArbiter):
            self.arbiter.recount()

    def _dead(self) -> set[int]:
        """Members that vote no more: proven dead by this process, or gone with a goodbye.

        Proof counts for neighbours only: what others said may still be on its way, by a third (`ballot`).
        """
        core = self._control.core
        return core.proven.intersection(core.neighbours) | self._left | core.departed

    def _reachable(self) -> set[int]:
        """Members that are not known to be gone, this process included."""
        return set(range(len(self._uids))) - self._gone - self._control.core.departed
