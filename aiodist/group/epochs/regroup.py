"""From one epoch to the next: the shell around `membership`, for one world.

    rebuild, shrink, grow ─▶ Assembly ─▶ drafts ─▶ Candidates ─▶ arbiter ─▶ the next epoch's group

The comment below says why it is made this way.
"""

# Why it is this way
#
# What to do next is decided by `membership.assembly`, which is pure; `_take` carries one step of it out, and
# waits for news. This file is about what that has to live with: members that die at any moment, also those
# that were about to say something.
#
# Forming comes before deciding. An epoch that was decided, and whose members cannot connect, would leave
# nobody to decide on the next: the epoch before is over, and this one has no control links. So a draft is
# formed first, as a whole new world beside the old one (`Candidate`), and only a draft that its convener has
# formed is put to the arbiter.
#
# Worlds of dropped drafts are kept until it is known which draft is the epoch. A convener may die between
# asking the arbiter and telling. The next one drafts anew and asks, too, and is told the first answer. So a
# draft that this process has given up may still turn out to be the epoch: its barrier failed here, and was
# passed there.
#
# The control links of the old world carry what members say (`listening`), and they alone say which of its
# members are dead. What a candidate's own links say of them is not believed (`_culprits`): a member that
# gives a draft up ends all its connections, and looks dead there.
#
# Every candidate has a `Regroup` of its own, from before its barrier. A member that knows the decision
# leaves the old world, and newcomers were never in it. So the decision is told on the links of the new
# world, too (`Listener.confirm`), by every member that learns of it.
#
# A call goes on when its awaiter is cancelled, since the others count on this process. It is a task of the
# job, and the user's next call takes up its result. It ends with the job.
#
# The old group is closed beside the new one. Its goodbyes may take as long as its slowest member. But no
# buffer of it is touched any more when the new group is returned (`let_go`). From `_take_over` on,
# closing the old group closes the new one, and the end of the old world no longer ends the job
# (`World.leave`).

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from aiodist.base.errors import (
    Evicted,
    GroupBroken,
    GroupClosed,
    PeerLost,
    QuorumLost,
    RendezvousError,
    RendezvousTimeout,
)
from aiodist.base.types import AS, Kind, ReduceOp
from aiodist.group.core import GroupCore
from aiodist.group.default import replace_default
from aiodist.group.epochs.candidate import Candidate
from aiodist.group.epochs.convening import ASKING, Convening
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.listening import EVICTED_HINT, Listener
from aiodist.group.epochs.world import World
from aiodist.group.membership.assembly import FORMING, Adopt, Assembly, Fail, Form, Invite, Rule, Wait
from aiodist.group.membership.drafts import DraftState
from aiodist.group.membership.messages import Decided, Dropped, Ready
from aiodist.group.membership.newcomers import WaitingList
from aiodist.group.membership.presence import LATEST
from aiodist.group.membership.record import Number, Record
from aiodist.group.process_group import ProcessGroup
from aiodist.group.requests import internal
from aiodist.group.services.switchboard import Switchboard
from aiodist.net.shortage import shortage
from aiodist.rendezvous import Store

logger = logging.getLogger("aiodist.group.regroup")


class Regroup:
    """One process's part in the membership changes of one world.

    Args:
        job: what outlives the epoch.
        world: the epoch, linked.
        group: its group, whose calls for the next epoch come here.
        on_decided: called when it is known that this world is an epoch, where its members say so.

    Attributes:
        job, group: as given.
        listener: to what the members say.
    """

    def __init__(
        self, job: Job, world: World, group: ProcessGroup, on_decided: Callable[[], None] | None = None
    ) -> None:
        self.job = job
        self._world = world
        self.group = group
        self._core = core = group._core
        self._loop = asyncio.get_running_loop()
        self._issued = 0
        self._candidates: dict[Number, Candidate[Regroup]] = {}
        self._moving: asyncio.Task[ProcessGroup] | None = None  # until its result is taken
        self._waiting: WaitingList | None = None
        self.listener = hears = Listener(job, world, group, on_decided)
        self._convening = Convening(job, world, hears.arbiter, hears.say, hears.changed.set, self._meets_at)
        world.parting = self.leave
        core.family.regroup = self

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────

    def call(self, ready: Ready, timeout: float) -> Awaitable[ProcessGroup]:
        """Call for the next epoch; see `Regrouping.call`."""
        if self._moving is None:
            self._core.check_here()
            self._core.batches.begin()
            ready = replace(ready, call=self._number())
            # The others count on it, so it goes on, even if the caller stops waiting for it (law 2).
            self._moving = self.job.in_background(self._when_idle(ready, timeout))
            self._moving.add_done_callback(_seen)
        return self._moved()

    def _number(self) -> int:
        """Take the number of a call (law 1)."""
        self._issued += 1
        return self._issued

    async def _moved(self) -> ProcessGroup:
        """Take the result of the call that was begun."""
        moving = self._moving
        assert moving is not None
        await asyncio.wait([moving])
        if self._moving is moving:
            self._moving = None
        if moving.cancelled():
            raise GroupClosed(f"the job was left in the middle of a call for epoch {self.group.epoch + 1}")
        group = moving.result()
        replace_default(self.group, group)  # of the task that awaits it
        return group

    async def _when_idle(self, ready: Ready, timeout: float) -> ProcessGroup:
        """Wait until what was issued before has ended, one way or the other; then form the next epoch."""
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._core.until_idle()
        except TimeoutError:
            self._core.break_group(
                GroupBroken("operations were in flight when the epoch ended", hint="Await them first")
            )
            await self._core.until_idle()
        return await self._next_epoch(ready, max(deadline - self._loop.time(), 0.0))

    async def _next_epoch(self, ready: Ready, timeout: float) -> ProcessGroup:
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
                if ready.wanted or self.listener.over:
                    raise
            ready = replace(ready, call=self._number())
            deadline = max(deadline, self._loop.time() + FORMING)

    async def _attend(self, ready: Ready, deadline: float) -> ProcessGroup:
        assembly = self.listener.assembly(ready.call)
        logger.debug("call %d for epoch %d: %s", ready.call, assembly.epoch + 1, ready)
        self.listener.say(None, assembly.begin(ready, deadline))
        candidate: Candidate[Regroup] | None = None
        kept: Candidate[Regroup] | None = None
        try:
            while candidate is None:
                self.listener.changed.clear()
                candidate = await self._take(assembly)
            regroup = candidate.regroup
            assert regroup is not None
            await self._convening.stop()
            self._check_open()
            regroup._take_over(self, candidate)
            self.job.passed_over.note(assembly.culprits, self._loop.time())
            kept = candidate
        finally:
            await self._tidy(kept)
        try:
            for group in self._core.family:  # from here on nothing touches a buffer of the old epoch's
                await group.let_go()
        finally:
            self.job.in_background(self._core.close())
        return await regroup.enter(candidate, ready, deadline)

    def admit(self) -> None:
        """Make this epoch, which was decided, the first of a process: the end of its world ends the job."""
        self.listener.decided = True
        self._world.leave = self.job.end

    async def enter(self, candidate: Candidate[Regroup], ready: Ready, deadline: float) -> ProcessGroup:
        """Settle in this epoch, which was decided: return its group when every member has come over; or a
        later one's, if a member died on the way.

        Args:
            candidate: that became this epoch.
            ready: what this process called for.
            deadline: of that call; seconds of the loop's clock.
        """
        await candidate.barrier_ended()
        self._world.serve()
        try:
            if self.group.rank == 0:
                with contextlib.suppress(RendezvousError):
                    await self.job.store.set(LATEST, candidate.record.encode())
            await self._core.connect(max(deadline - self._loop.time(), FORMING))
            limit = max(deadline - self._loop.time(), FORMING)
            await self._tell_progress(limit)  # and then all are ready
        except Evicted:
            raise
        except GroupBroken as error:
            logger.info("epoch %d broke at once: %s", self.group.epoch, error)
            again = Ready(self._number(), ready.min_size, ready.admit, 0, ready.excluded)
            return await self._next_epoch(again, max(deadline - self._loop.time(), FORMING))
        return self.group

    async def _tell_progress(self, timeout: float) -> None:
        """Have newcomers know whether members have values that must not be lost: these may die next."""
        lineage = self._core.lineage
        most = np.array([lineage.progress], np.uint8)
        asked = internal(Kind.all_reduce, most, reduce=ReduceOp.MAX, detail=f"{AS}rebuild()")
        await self._core.issue(asked, timeout, False)
        lineage.told(int(most[0]))

    def _check_open(self) -> None:
        if self.listener.over or self._core.closed:
            raise GroupClosed(f"group '{self.group.name}' was closed in the middle of the call")

    async def _take(self, assembly: Assembly) -> Candidate[Regroup] | None:
        """Take one step → the candidate that has become the epoch, if it ends with that."""
        self._check_open()
        if (error := self.listener.evicted()) is not None:
            raise error
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
                    logger.debug("forming draft %s with %d members", record.name, len(record.members))
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

    def _culprits(self, candidate: Candidate[Regroup]) -> tuple[bytes, ...]:
        """Members that shall not be in the next draft. The first to find that a draft cannot be formed ends
        all its connections, so to the others it looks like the one that is lost. The old world knows better
        which of its members live; so only newcomers are given up for a lost connection."""
        if isinstance(candidate.error, PeerLost):
            return tuple(uid for uid in candidate.culprits if uid not in self._world.uids)
        return tuple(candidate.culprits)

    def _listen(self, assembly: Assembly, record: Record, world: World, group: ProcessGroup) -> Regroup:
        """Listen in the draft's world: there, too, a member may say that it has become the epoch."""

        def learn() -> None:
            assembly.decide(record)
            self.listener.changed.set()

        return Regroup(self.job, world, group, learn)

    async def _pause(self, assembly: Assembly, until: float) -> None:
        """Wait for news, at most until then, or until the call's next limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, assembly.limit(self._loop.time()))):
                await self.listener.changed.wait()

    def _came_further(self, assembly: Assembly, number: Number) -> None:
        candidate = self._candidates.get(number)
        if candidate is not None:
            if candidate.formed:
                assembly.form(number)
            elif candidate.error is not None and assembly.state_of(number) is not DraftState.DROPPED:
                logger.info("a draft of epoch %d came to nothing: %s", assembly.epoch + 1, candidate.error)
                culprits, lack = self._culprits(candidate), shortage(candidate.error)
                why = str(candidate.error) if lack is None else f"rank {self._world.control.rank} {lack.what}"
                logger.debug("draft %s is dropped for %d members' sake", number, len(culprits))
                assembly.drop(number, culprits, why)
                self.listener.say(None, Dropped(assembly.call, number, culprits, why[:200]))
        self.listener.changed.set()

    @property
    def uids(self) -> Sequence[bytes]:
        """The members' uids, by rank."""
        return self._world.uids

    @property
    def services(self) -> Switchboard | None:
        """The process's services; see `Regrouping.services`."""
        return self.job.settings.services

    async def agree(self, group: GroupCore, flag: bool, timeout: float) -> bool:
        """Agree with all members on a flag, whatever fails; see `ProcessGroup.agree`."""
        return await self.listener.agreements.agree(group, flag, timeout)

    async def count_newcomers(self) -> int:
        """The number of processes that wait at the store."""
        if self._waiting is None:  # only now is it sure where this epoch meets
            self._waiting = WaitingList(self.job.store, self._world.uids)
        return await self._waiting.count(self.job.passed_over.at(self._loop.time()))

    # ── the end of a call ────────────────────────────────────────────────────────────────────────────

    async def _adopted(self, assembly: Assembly, record: Record) -> Candidate[Regroup]:
        candidate = self._candidates.get(record.number)
        decided = Decided(assembly.call, record)
        self.listener.say(None, decided)
        regroup = None if candidate is None else await candidate.linked()
        if candidate is None or regroup is None:
            raise Evicted(
                f"epoch {record.epoch} was formed, and this process did not connect to its members",
                hint=EVICTED_HINT,
            )
        regroup.listener.confirm(decided)
        return candidate

    def _meets_at(self, number: Number) -> Store | None:
        candidate = self._candidates.get(number)
        return None if candidate is None else candidate.store

    async def _tidy(self, adopted: Candidate[Regroup] | None) -> None:
        try:
            await self._convening.stop()
        finally:
            for number, candidate in list(self._candidates.items()):
                if candidate is not adopted:
                    self.job.in_background(candidate.close())
                del self._candidates[number]

    def _take_over(self, old: Regroup, candidate: Candidate[Regroup]) -> None:
        """Take the place of the old epoch: closing the old group closes this one from now on."""
        self._world.leave, old._world.leave = old._world.leave, _nothing
        old.listener.followed = True
        self._core.succeed(old._core)
        replace_default(old.group, self.group)
        self.job.move_to(candidate.record, candidate.store)

    def _failure(self, assembly: Assembly, fail: Fail) -> Exception:
        if fail.evicted:
            return Evicted(fail.why, hint=EVICTED_HINT)
        if fail.quorum:
            return QuorumLost(
                f"no epoch {assembly.epoch + 1}: {fail.why}",
                hint="Leave; start the job again, or join again if another part of it goes on",
            )
        return RendezvousTimeout(
            f"no epoch {assembly.epoch + 1}: {fail.why}", hint="The group is as it was: go on with it"
        )

    def leave(self) -> None:
        """Take no part any more: the world ends here."""
        self.listener.leave()
        if self._waiting is not None:
            self._waiting.close()


def _seen(moving: asyncio.Task[ProcessGroup]) -> None:
    """Mark the error as seen: asyncio need not complain if nobody takes the result."""
    if not moving.cancelled():
        moving.exception()


def regroup_of(group: ProcessGroup) -> Regroup | None:
    """The way of a group's members to the next epoch; None where they never change."""
    found = group._core.family.regroup
    return found if isinstance(found, Regroup) else None


async def _nothing() -> None:
    """Do nothing: the job goes on in another epoch."""
