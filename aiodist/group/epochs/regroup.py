"""From one epoch to the next: the shell around `membership`, for one world.

    rebuild, shrink, grow ─▶ Assembly ─▶ drafts ─▶ Candidates ─▶ arbiter ─▶ the next epoch's group

It listens on the world's control links from the world's first moment on, so that what others say about a
call that this process has yet to make is not lost, and so that a process that was given up learns of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiodist.control.liveness import Blocked
from aiodist.control.messages import Message, Say
from aiodist.errors import (
    Evicted,
    GroupClosed,
    PeerLost,
    QuorumLost,
    RendezvousTimeout,
    Tampered,
    WireError,
)
from aiodist.group.default import override
from aiodist.group.epochs.agreement import Agreements
from aiodist.group.epochs.candidate import Candidate
from aiodist.group.epochs.convening import ASKING, Convening
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.succession import let_go, settle_in, succeed
from aiodist.group.epochs.waiting import Waiting
from aiodist.group.epochs.world import World
from aiodist.group.subgroups import context_of
from aiodist.membership.arbiter import Arbiter, MajorityArbiter, StoreArbiter
from aiodist.membership.assembly import FORMING, Adopt, Assembly, Fail, Form, Invite, Rule, Wait
from aiodist.membership.motions import (
    Accept,
    Accepted,
    Answer,
    Ask,
    Decided,
    Draft,
    Dropped,
    Leave,
    Motion,
    Outbid,
    Prepare,
    Promise,
    Ready,
    Void,
    decode,
    encode,
)
from aiodist.membership.record import Number, Record
from aiodist.net.shortage import shortage
from aiodist.rendezvous import Store

if TYPE_CHECKING:
    from aiodist.group.process_group import ProcessGroup

logger = logging.getLogger("aiodist")

_CALLS = 64  # of which what was said is kept

_EVICTED_HINT = "Leave, and join anew: dist.join()"


class Regroup:
    """One process's part in the membership changes of one world.

    Args:
        job: what outlives the epoch.
        world: the epoch, linked.
        group: its group, whose calls for the next epoch come here.

    Attributes:
        decided: set when it is known that this world is an epoch, and no mere draft.
        on_decided: called then, where its members say so.
        moving: the call that is under way, or whose result nobody has taken yet.
    """

    def __init__(self, job: Job, world: World, group: ProcessGroup) -> None:
        self.job = job
        self._world = world
        self._group = group
        self._control = world.control
        self._loop = asyncio.get_running_loop()
        self._context = context_of(group.context, 0, [], "membership")
        self._calls: dict[int, Assembly] = {}
        self._issued = 0
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self._changed = asyncio.Event()
        self._candidates: dict[Number, Candidate] = {}
        self._given_up = ""  # why the others count this process as lost
        self._over = False
        self.moving: asyncio.Task[ProcessGroup] | None = None
        self.decided = asyncio.Event()
        self.on_decided: Callable[[], None] = _unheard
        self.arbiter = self._make_arbiter()
        self._convening = Convening(job, world, self.arbiter, self._say, self._changed.set, self._meets_at)
        self._waiting: Waiting | None = None
        self.agreements = Agreements(group._family, self._say, self._reachable, self.arbiter)
        self._control.subscribe(self._context, self)
        self._control.on_proven = self._recount
        world.parting = self.leave
        group._regroup = self

    def _make_arbiter(self) -> Arbiter:
        if self._world.store_hosts:
            return MajorityArbiter(self._control.rank, len(self._world.uids), self._say, self._dead)
        return StoreArbiter(self.job.store)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────

    def number(self) -> int:
        """Take the number of a call (law 1)."""
        self._issued += 1
        return self._issued

    def move(self, call: Coroutine[Any, Any, ProcessGroup]) -> None:
        """Begin a call. Others count on it, so it goes on whoever stops waiting for it (law 2)."""
        self.moving = moving = self._loop.create_task(call)
        self.job.background.add(moving)
        moving.add_done_callback(self.job.background.discard)
        moving.add_done_callback(_seen)

    async def moved(self) -> ProcessGroup:
        """Take the result of the call that was begun."""
        moving = self.moving
        assert moving is not None
        await asyncio.wait([moving])
        if self.moving is moving:
            self.moving = None
        if moving.cancelled():
            raise GroupClosed(f"the job was left in the middle of a call for epoch {self._group.epoch + 1}")
        group = moving.result()
        if override.get() is self._group:
            override.set(group)
        return group

    async def next_epoch(self, ready: Ready, timeout: float) -> ProcessGroup:
        """Form the next epoch with the others that call for it.

        Raises:
            Evicted, QuorumLost, RendezvousTimeout.
        """
        deadline = self._loop.time() + timeout
        while True:
            try:
                return await self._attend(ready, deadline)
            except RendezvousTimeout:
                # The others waited in vain for newcomers, before they knew that this process wants none: the
                # group is broken, and they, too, will call again.
                if ready.wanted or self._over:
                    raise
            ready = replace(ready, call=self.number())
            deadline = max(deadline, self._loop.time() + FORMING)

    async def _attend(self, ready: Ready, deadline: float) -> ProcessGroup:
        assembly = self._assembly(ready.call)
        self._say(None, assembly.begin(ready, deadline))
        adopted: Candidate | None = None
        moved = False
        try:
            while adopted is None:
                self._changed.clear()
                adopted = await self._take(assembly)
            await self._convening.stop()
            self._check_open()
            self._succeed(adopted)
            moved = True
        finally:
            await self._tidy(adopted if moved else None)
        try:
            await let_go(self._group)
        finally:
            self.job.close_later(self._group._close())
        return await settle_in(adopted, ready, deadline)

    def _check_open(self) -> None:
        if self._over or self._group._closing is not None:
            raise GroupClosed(f"group '{self._group.name}' was closed in the middle of the call")

    async def _take(self, assembly: Assembly) -> Candidate | None:
        """One step; the candidate that has become the epoch, if that is it."""
        self._check_open()
        if self._given_up:
            raise Evicted(f"the others count this process as lost: {self._given_up}", hint=_EVICTED_HINT)
        step = assembly.next(self._loop.time())
        match step:
            case Adopt(record):
                return await self._adopted(assembly, record)
            case Fail():
                raise self._failure(assembly, step)
            case Invite():
                self._convening.invite(assembly, step)
                await self._pause(assembly, self._loop.time() + FORMING)
            case Form(record):
                if record.number not in self._candidates:
                    self._candidates[record.number] = Candidate(
                        self.job,
                        record,
                        FORMING,
                        lambda: self._came_further(assembly, record.number),
                        lambda world, group: self._listen(assembly, record, world, group),
                    )
                await self._pause(assembly, self._loop.time() + FORMING)
            case Rule(record):
                self._convening.rule(assembly, record)
                await self._pause(assembly, self._loop.time() + ASKING)
            case Wait(until):
                await self._pause(assembly, until)
        return None

    def _culprits(self, candidate: Candidate) -> tuple[bytes, ...]:
        """Who shall not be in the next draft. Whoever finds out first that one cannot be formed ends all its
        connections, so to the others it looks like the one that is lost. The old world knows better which of
        its members live; so only newcomers are given up for a lost connection."""
        if isinstance(candidate.error, PeerLost):
            return tuple(uid for uid in candidate.culprits if uid not in self._world.uids)
        return tuple(candidate.culprits)

    def _listen(self, assembly: Assembly, record: Record, world: World, group: ProcessGroup) -> Regroup:
        """The draft's own ear: in its world, too, somebody may say that it has become the epoch."""

        def learn() -> None:
            assembly.decide(record)
            self._changed.set()

        regroup = Regroup(self.job, world, group)
        regroup.on_decided = learn
        return regroup

    async def _pause(self, assembly: Assembly, until: float) -> None:
        """Wait for news, at most until then, or until the call's next limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, assembly.limit(self._loop.time()))):
                await self._changed.wait()

    def _came_further(self, assembly: Assembly, number: Number) -> None:
        candidate = self._candidates.get(number)
        if candidate is not None:
            if candidate.formed:
                assembly.form(number)
            elif candidate.error is not None and not assembly.was_dropped(number):
                logger.info("a draft of epoch %d came to nothing: %s", assembly.epoch + 1, candidate.error)
                culprits, lack = self._culprits(candidate), shortage(candidate.error)
                why = str(candidate.error) if lack is None else f"rank {self._control.rank} {lack.what}"
                assembly.drop(number, culprits, why)
                self._say(None, Dropped(assembly.call, number, culprits, why[:200]))
        self._changed.set()

    @property
    def uids(self) -> Sequence[bytes]:
        """The members' uids, by rank."""
        return self._world.uids

    async def count_newcomers(self) -> int:
        """How many wait at the store."""
        if self._waiting is None:  # only now is it sure where this epoch meets
            self._waiting = Waiting(self.job.store, self._world.uids)
        return await self._waiting.count()

    # ── the end of a call ────────────────────────────────────────────────────────────────────────────

    async def _adopted(self, assembly: Assembly, record: Record) -> Candidate:
        candidate = self._candidates.get(record.number)
        decided = Decided(assembly.call, record)
        self._say(None, decided)
        if candidate is None or not await candidate.linked():
            raise Evicted(
                f"epoch {record.epoch} was formed, and this process did not connect to its members",
                hint=_EVICTED_HINT,
            )
        assert candidate.regroup is not None
        candidate.regroup.confirm(decided)
        return candidate

    async def _tidy(self, adopted: Candidate | None) -> None:
        try:
            await self._convening.stop()
        finally:
            for number, candidate in list(self._candidates.items()):
                if candidate is not adopted:
                    self.job.close_later(candidate.close())
                del self._candidates[number]

    def _succeed(self, candidate: Candidate) -> None:
        """The new epoch takes the place of the old one, here. From now on whoever closes the old group closes
        the new one."""
        group, world = candidate.group, candidate.world
        assert group is not None
        assert world is not None
        world.leave, self._world.leave = self._world.leave, _nothing
        succeed(self._group, group)
        self.job.store = candidate.store or self.job.store
        if candidate.record.store:
            self.job.store_address, self.job.store_host = candidate.record.store, candidate.record.host

    def _failure(self, assembly: Assembly, fail: Fail) -> Exception:
        if fail.evicted:
            return Evicted(fail.why, hint=_EVICTED_HINT)
        if fail.quorum:
            return QuorumLost(
                f"no epoch {assembly.epoch + 1}: {fail.why}",
                hint="Leave; start the job again, or join anew if another part of it goes on",
            )
        return RendezvousTimeout(
            f"no epoch {assembly.epoch + 1}: {fail.why}", hint="The group is as it was: go on with it"
        )

    # ── what is heard ────────────────────────────────────────────────────────────────────────────────

    def rank_lost(self, rank: int, cause: str, silence: float | None = None) -> None:
        """A member is lost."""
        if rank == self._control.rank:
            self._given_up = cause
            self._changed.set()
        else:
            self._out(rank)

    def rank_left(self, rank: int) -> None:
        """Said here first."""

    def ranks_blocked(self, blocked: Mapping[int, Blocked], now: float) -> None:
        """The groups see to it."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Nobody is out because of that."""

    def said(self, message: Message) -> None:
        """A motion. Who speaks nonsense is as good as lost."""
        if message.say is not Say.motion:
            return
        try:
            self._hear(message.origin, decode(message.body[1]))
        except WireError as error:
            self._control.lose(message.origin, f"spoke nonsense about membership ({error})")

    def _hear(self, origin: int, motion: Motion) -> None:
        match motion:
            case Ready() | Draft() | Dropped() | Void():
                self._assembly(motion.call).hear(origin, motion, self._loop.time())
            case Decided(_, record):
                self.confirm(motion)
                self._assembly(motion.call)
                for assembly in self._calls.values():  # also of a call that the others know nothing of
                    assembly.hear(origin, motion, self._loop.time())
                self._evicted_by(record)
            case Prepare() | Promise() | Accept() | Accepted() | Outbid():
                if isinstance(self.arbiter, MajorityArbiter):
                    self.arbiter.hear(origin, motion)
            case Ask() | Answer():
                self.agreements.hear(origin, motion)
            case Leave():
                self._left.add(origin)
                self._out(origin)
                self._control.part(origin)
        self._changed.set()

    def confirm(self, decided: Decided) -> None:
        """This world's own epoch was decided; told on its own links for newcomers to hear."""
        if decided.record.epoch == self._group.epoch and not self.decided.is_set():
            self.decided.set()
            self._say(None, decided)
            self.on_decided()
            self.on_decided = _unheard  # it knows the epoch before, which ends here

    def _evicted_by(self, record: Record) -> None:
        if record.epoch == self._group.epoch + 1 and self.job.uid not in record.members:
            why = f"epoch {record.epoch} was formed without this process"
            self._group._break(Evicted(why, hint=_EVICTED_HINT), tell=False)

    def _out(self, rank: int) -> None:
        self._gone.add(rank)
        for assembly in self._calls.values():
            assembly.lose(rank)
        self._recount(rank)
        self.agreements.lose()
        self._changed.set()

    def _recount(self, rank: int) -> None:
        """One more may be proven dead: perhaps that is a majority."""
        if isinstance(self.arbiter, MajorityArbiter):
            self.arbiter.recount()

    def _meets_at(self, number: Number) -> Store | None:
        candidate = self._candidates.get(number)
        return None if candidate is None else candidate.store

    def _assembly(self, call: int) -> Assembly:
        assembly = self._calls.get(call)
        if assembly is None:
            if len(self._calls) >= _CALLS:
                del self._calls[min(self._calls)]
            assembly = Assembly(call, self._group.epoch, self._control.rank, self._world.uids)
            for rank in self._gone:
                assembly.lose(rank)
            self._calls[call] = assembly
        return assembly

    # ── small things ─────────────────────────────────────────────────────────────────────────────────

    def _say(self, target: int | None, motion: Motion) -> None:
        if self._over:
            return
        if target is None:
            self._control.flood(Say.motion, self._context, encode(motion))
        else:
            self._control.tell([target], Say.motion, self._context, encode(motion))

    def _dead(self) -> set[int]:
        """Members that vote no more: proven dead by this process, or gone with a goodbye.

        Proof counts for neighbours only: what others said may still be on its way, by a third (`ballot`).
        """
        core = self._control.core
        return core.proven.intersection(core.neighbours) | self._left | core.departed

    def _reachable(self) -> set[int]:
        """Members that are not known to be gone, this process included."""
        return set(range(len(self._world.uids))) - self._gone - self._control.core.departed

    def leave(self) -> None:
        """The world ends here: tell the others that this process takes no part any more."""
        if not self._over:
            if self._group._error is None and self.decided.is_set():
                self.job.finished = (self._group.epoch, len(self._world.uids))
            if (words := self.agreements.last_words()) is not None:
                self._say(None, words)
            self._say(None, Leave())
            self.job.hasty = bool(self._control.core.lost)
            self._over = True
            self._changed.set()
            self._control.unsubscribe(self._context)
            self.arbiter.close()
            if self._waiting is not None:
                self._waiting.close()


def _seen(moving: asyncio.Task[ProcessGroup]) -> None:
    """Whoever takes the result is told; asyncio need not complain if nobody does."""
    if not moving.cancelled():
        moving.exception()


def _unheard() -> None:
    pass


async def _nothing() -> None:
    """The job goes on in another epoch."""
