"""Calls that change who belongs to the job: `rebuild`, `shrink`, `grow`, `agree`, `pending_joins`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aiodist.backends.base import Array
from aiodist.errors import GroupBroken, RendezvousError, UsageError
from aiodist.group import arguments as check
from aiodist.group.objects import Objects
from aiodist.group.requests import internal
from aiodist.membership.motions import Ready
from aiodist.timeouts import Timeout, seconds
from aiodist.types import Call, Kind
from aiodist.work import Work

if TYPE_CHECKING:
    from aiodist.group.epochs.regroup import Regroup
    from aiodist.group.process_group import ProcessGroup

_PENDING_JOINS = "pending joins"


class Changes(Objects):
    """See `ProcessGroup` for what all calls have in common."""

    def rebuild(
        self, min_size: int = 1, admit: bool = True, *, timeout: Timeout = None
    ) -> Awaitable[ProcessGroup]:
        """Go on with who is left: the next epoch's world, without the lost, with newcomers.

        Every member that lives calls it, after an error or at a step's boundary. It is returned when every
        member has left this epoch; this group and its subgroups are closed then, and ranks are counted anew,
        in their old order, newcomers last. A member that dies meanwhile is left out; its death starts nothing
        over for the user. Cancelling whoever awaits it does not stop it; the next such call takes it up.

        Args:
            min_size: with fewer members than this there is no next epoch. Newcomers count.
            admit: take in who waits (`dist.join`).
            timeout: seconds to wait for members that live and have not called; then they are evicted. None
                takes the group's.

        Returns:
            → the new group, at a later epoch; also the loop's default group, if this one was.

        Raises:
            UsageError: the group is no world.
            QuorumLost: too few are left, or the arbiter cannot be reached: this process must not go on.
            Evicted: the others went on without this process.
        """
        return self._next_epoch(check.at_least_1(min_size, "min_size"), bool(admit), 0, (), timeout)

    def shrink(self, exclude: Sequence[int] = (), *, timeout: Timeout = None) -> Awaitable[ProcessGroup]:
        """Go on without some members, and without the lost. All others call it; newcomers wait on.

        Args:
            exclude: group ranks that shall leave; the same on every caller. They find this group broken by
                `Evicted`, and need not call.
            timeout: as in `rebuild`.

        Returns, Raises: as `rebuild`.
        """
        regroup = self._must_regroup()
        named = check.some(exclude, self.size, "exclude", "a list of ranks")
        members = check.members(named, self.size) if named else ()
        if self.rank in members:
            raise UsageError(f"rank {self.rank} cannot exclude itself", hint="Close the group and leave")
        uids = tuple(regroup.uids[member] for member in members)
        return self._next_epoch(1, False, 0, uids, timeout)

    def grow(self, n: int = 1, *, timeout: Timeout = None) -> Awaitable[ProcessGroup]:
        """Wait for newcomers and go on with them. All members call it.

        What is in flight ends first. Where it comes to nothing this group is as it was. Where a member calls
        `rebuild` meanwhile, because something broke, all go on without waiting for newcomers.

        Args:
            n: how many newcomers there have to be; all who wait are admitted.
            timeout: seconds to wait for them, and for members that have not called. None takes the group's.

        Returns: as `rebuild`.

        Raises:
            RendezvousTimeout: they did not come.
            QuorumLost, Evicted: as `rebuild`.
        """
        return self._next_epoch(1, True, check.at_least_1(n, "n"), (), timeout)

    async def agree(self, flag: bool = True, *, timeout: Timeout = None) -> bool:
        """Whether all members say yes: the same answer on all survivors, whoever dies meanwhile.

        It is a collective, numbered in order with the others. After a death operations may have ended well on
        some members and failed on others; only this is uniform, so steps are committed by it.

            ok = await pg.agree(ok)

        Args:
            flag: what this member says.
            timeout: seconds; None takes the group's.

        Returns:
            → True if all members said yes and all lived to say so, as far as any survivor knows; else False.

        Raises:
            CollectiveMismatch: members issued something else, in its place or before it.
            CollectiveTimeout: a member that lives does not answer how it ended there.
            QuorumLost, Evicted: this process has no say any more.
        """
        limit = self.timeout if timeout is None else seconds(timeout)
        return await self._world_regroup().agreements.agree(self, bool(flag), limit)

    async def pending_joins(self, *, timeout: Timeout = None) -> int:
        """How many newcomers wait to be admitted. A collective: all members get the same answer.

        Args:
            timeout: seconds; None takes the group's.

        Raises:
            RendezvousError: rank 0, which asks the store, could not.
        """
        regroup = self._must_regroup()
        self._check_here()
        limit = self.timeout if timeout is None else seconds(timeout)
        self._batches.begin()
        number = self._reserve()  # before the store is asked: other tasks may issue meanwhile
        found = np.full((), -1, np.int64)
        call = Call(Kind.broadcast, number, found.dtype, found.shape, None, 0, 0, _PENDING_JOINS)
        work: Work[int] = Work(self, call, self._loop, self._pulse, True, self._failures)
        asking = self._loop.create_task(regroup.count_newcomers()) if self.rank == 0 else None
        if asking is not None:
            self._opening.add(asking)
            asking.add_done_callback(self._opening.discard)
        self._carry_out(work, partial(self._tell_who_waits, asking, number, found, limit))
        try:
            return await work
        except asyncio.CancelledError:
            work._failures = None  # nobody wants the answer
            if asking is not None:
                asking.cancel()  # the others are told that it could not be asked
            raise

    async def newcomers_here(self) -> int:
        """How many newcomers wait, as far as this rank knows; no collective. Ranks may know different things.

        Without a round trip after the first call: cheap enough to ask at every step.
        """
        return await self._must_regroup().count_newcomers()

    # ── how they come about ──────────────────────────────────────────────────────────────────────────

    async def _tell_who_waits(
        self, asking: asyncio.Task[int] | None, number: int, found: Array, limit: float
    ) -> int:
        """The store's answer goes from rank 0 to the others; -1 where there is none."""
        told: int | BaseException = -1
        if asking is not None:
            await asyncio.wait([asking], timeout=limit)
            asking.cancel()
            [told] = await asyncio.gather(asking, return_exceptions=True)
            found[...] = told if isinstance(told, int) else -1
        asked = internal(Kind.broadcast, found, root=0, detail=_PENDING_JOINS)
        work = self._issue(asked, limit, True, reserved=number)
        await work._as_step()
        if isinstance(told, Exception):
            raise told
        if found < 0:
            raise RendezvousError(
                f"rank {self.ranks[0]} could not ask the store who waits", hint="See that rank's output"
            )
        return int(found)

    def _next_epoch(
        self, min_size: int, admit: bool, wanted: int, excluded: tuple[bytes, ...], timeout: Timeout
    ) -> Awaitable[ProcessGroup]:
        self._check_here(closed_is_wrong=False)
        regroup = self._must_regroup()
        limit = self.timeout if timeout is None else seconds(timeout)
        if regroup.moving is None:
            self._check_here()
            self._batches.begin()
            ready = Ready(regroup.number(), min_size, admit, wanted, excluded)
            regroup.move(self._when_quiet(regroup, ready, limit))
        return regroup.moved()

    async def _when_quiet(self, regroup: Regroup, ready: Ready, limit: float) -> ProcessGroup:
        """What was issued before ends before, one way or the other."""
        deadline = self._loop.time() + limit
        try:
            async with asyncio.timeout_at(deadline):
                await self.drain()
        except TimeoutError:
            self._break(
                GroupBroken("operations were in flight when the epoch ended", hint="Await them first")
            )
            await self.drain()
        return await regroup.next_epoch(ready, max(deadline - self._loop.time(), 0.0))

    def _must_regroup(self) -> Regroup:
        if self._regroup is None:
            raise UsageError(
                f"group '{self.name}' is not the world, whose members alone can change",
                hint="Call it on the world's group, and make subgroups anew",
            )
        if "regroups" not in self._backend.capabilities:
            raise UsageError(
                f"backend {self.backend!r} cannot go on with other members in the same processes",
                hint="Have the job's launcher start new processes, and go on from a checkpoint",
            )
        return self._regroup

    def _world_regroup(self) -> Regroup:
        for group in self._family:
            if group._regroup is not None:
                return group._regroup
        raise UsageError(f"group '{self.name}' belongs to no world whose members can change")
