"""Calls that change the members of the job: `rebuild`, `shrink`, `grow`, `agree`, `pending_joins`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, Call, Kind
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.group.family import Regrouping
from aiodist.group.membership.messages import Ready
from aiodist.group.requests import internal

_PENDING_JOINS = f"{AS}pending_joins()"


class Changes:
    """The part of a group with the calls on membership: checks them, and hands them to `Regrouping`.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._roster = core.roster

    def rebuild(self, min_size: int, admit: bool, timeout: Timeout) -> Awaitable[Any]:
        """Make the next epoch of the members that are left; see `ProcessGroup.rebuild`."""
        return self._call(Ready(0, check.at_least_1(min_size, "min_size"), bool(admit), 0, ()), timeout)

    def shrink(self, exclude: Sequence[int], timeout: Timeout) -> Awaitable[Any]:
        """Make the next epoch without some members; see `ProcessGroup.shrink`."""
        regroup, size = self.must_regroup(), self._roster.size
        named = check.some(exclude, size, "exclude", "a list of ranks")
        members = check.members(named, size) if named else ()
        if self._roster.rank in members:
            raise UsageError(
                f"rank {self._roster.rank} cannot exclude itself", hint="Close the group and leave"
            )
        excluded = tuple(regroup.uids[member] for member in members)
        return self._call(Ready(0, 1, False, 0, excluded), timeout)

    def grow(self, n: int, timeout: Timeout) -> Awaitable[Any]:
        """Make the next epoch with newcomers; see `ProcessGroup.grow`."""
        return self._call(Ready(0, 1, True, check.at_least_1(n, "n"), ()), timeout)

    async def agree(self, flag: bool, timeout: Timeout) -> bool:
        """Agree with all members on a flag, whatever fails; see `ProcessGroup.agree`."""
        limit = self._core.limit(timeout)
        regroup = self._core.family.regroup
        if regroup is None:
            raise UsageError(f"group '{self._roster.name}' belongs to no world whose members can change")
        return await regroup.agree(self._core, bool(flag), limit)

    async def pending_joins(self, timeout: Timeout) -> int:
        """The number of newcomers that wait to be admitted; see `ProcessGroup.pending_joins`."""
        core, regroup = self._core, self.must_regroup()
        core.check_here()
        limit = core.limit(timeout)
        core.batches.begin()
        core.miss_who_left()
        number = core.reserve()  # before the store is asked: other tasks may issue meanwhile
        found = np.full((), -1, np.int64)
        work = core.work(
            Call(Kind.broadcast, number, found.dtype, found.shape, None, 0, 0, _PENDING_JOINS), True
        )
        asking = core.loop.create_task(regroup.count_newcomers()) if self._roster.rank == 0 else None
        if asking is not None:
            core.cancel_on_break(asking)
        core.carry_out(work, partial(self._tell_who_waits, asking, number, found, limit))
        try:
            return int(await work)
        except asyncio.CancelledError:
            work._forget_failure()
            if asking is not None:
                asking.cancel()  # the others are told that it could not be asked
            raise

    async def newcomers_here(self) -> int:
        """The number of waiting newcomers, as far as this rank knows; see `ProcessGroup.newcomers_here`."""
        return await self.must_regroup().count_newcomers()

    # ── how they are made ─────────────────────────────────────────────────────────────────────────────

    async def _tell_who_waits(
        self, asking: asyncio.Task[int] | None, number: int, found: Array, limit: float
    ) -> int:
        """Give the store's answer from rank 0 to the others; -1 where there is none."""
        answer: int | BaseException = -1
        if asking is not None:
            await asyncio.wait([asking], timeout=limit)
            asking.cancel()
            [answer] = await asyncio.gather(asking, return_exceptions=True)
            found[...] = answer if isinstance(answer, int) else -1
        asked = internal(Kind.broadcast, found, root=0, detail=_PENDING_JOINS)
        work = self._core.issue(asked, limit, True, reserved=number)
        await work._as_step()
        if isinstance(answer, Exception):
            raise answer
        if found < 0:
            raise RendezvousError(
                f"rank {self._roster.ranks[0]} could not ask the store which newcomers wait",
                hint="See that rank's output",
            )
        return int(found)

    def _call(self, ready: Ready, timeout: Timeout) -> Awaitable[Any]:
        self._core.check_here(closed_is_wrong=False)
        return self.must_regroup().call(ready, self._core.limit(timeout))

    def must_regroup(self) -> Regrouping:
        """The world's way to its next epoch.

        Raises:
            UsageError: the group is no world, or its members never change.
        """
        core = self._core
        regroup = core.family.regroup if core.is_world else None
        if regroup is None and core.is_world:
            raise UsageError(
                f"the members of group '{self._roster.name}' never change",
                hint="Those of a world that real processes form with the host engine can",
            )
        if regroup is None:
            raise UsageError(
                f"group '{self._roster.name}' is not the world, whose members alone can change",
                hint="Call it on the world's group, and make its subgroups again",
            )
        if "regroups" not in core.carriers.capabilities:
            raise UsageError(
                f"backend {core.carriers.name!r} cannot go on with other members in the same processes",
                hint="Have the job's launcher start new processes, and go on from a checkpoint",
            )
        return regroup
