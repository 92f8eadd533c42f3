"""Groups made of a group's members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Self, TypeVar

import numpy as np

from aiodist.control.messages import Say
from aiodist.errors import GroupAborted, GroupBroken, UsageError, shown
from aiodist.group import arguments as check
from aiodist.group.breakage import pack
from aiodist.group.core import GroupCore
from aiodist.group.requests import NO_DATA, Request, internal
from aiodist.timeouts import Timeout, seconds
from aiodist.types import OF_SPLIT, Kind
from aiodist.work import Work

T = TypeVar("T")


def context_of(parent: int, number: int, ranks: Sequence[int], name: str = "") -> int:
    """The 64-bit number that names a group, equal on all members without asking.

    Args:
        parent: the parent group's context; 0 for a world.
        number: of the new group among its parent's children.
        ranks: global ranks of the members.
        name: of a world (job, group name, epoch), or of a color.
    """
    text = f"{parent}/{number}/{','.join(map(str, ranks))}/{name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


_NO_COLOR = -1


class Subgroups(GroupCore):
    """See `ProcessGroup` for what all calls have in common."""

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        name: str = "",
        use_local_synchronization: bool = False,
    ) -> Awaitable[Self | None]:
        """Make a group of some of this group's ranks. All members of this group call it, in the same order.

        It takes its number in the call, like every collective, and returns when all have called.

        Args:
            ranks: group ranks of the members, in any order; None means all. They are sorted.
            timeout: of the call, and the new group's default; None takes this group's.
            name: for people.
            use_local_synchronization: only the new group's members call, and wait for each other alone.

        Returns:
            An awaitable of the new group; of None on ranks that are no members.
        """
        chosen = check.members(ranks, self.size)
        label = check.text(name, "name")
        limit = self.timeout if timeout is None else seconds(timeout)
        if use_local_synchronization:
            return self._meet_locally(chosen, limit, label)
        detail = f"ranks {list(chosen)}"
        work = self._issue(Request(Kind.new_group, NO_DATA, detail=detail), limit, True, at_once=True)
        context = context_of(self.context, self._next_child(), [self.ranks[member] for member in chosen])
        if self._error is None:
            self._backend.divide(context, chosen)
        return self._after(work, context, chosen, limit, label or f"{self.name}.{self._children}")

    def split(
        self, color: int | None, key: int = 0, *, timeout: Timeout = None, name: str = ""
    ) -> Awaitable[Self | None]:
        """Divide the group: ranks that give the same color form a group. All members call it.

        Args:
            color: any non-negative integer; None joins no group.
            key: orders the ranks of a new group; equal keys keep this group's order.
            timeout: of the call, and the new groups' default; None takes this group's.
            name: for people.

        Returns:
            An awaitable of this rank's new group; of None where `color` is None.
        """
        mine = np.array([_NO_COLOR if color is None else _word(color, "color"), _word(key, "key")], np.int64)
        if color is not None and mine[0] < 0:
            raise UsageError(f"color must be a non-negative integer or None, got {int(mine[0])}")
        label = check.text(name, "name")
        limit = self.timeout if timeout is None else seconds(timeout)
        table = np.empty((self.size, 2), np.int64)
        asked = internal(Kind.all_gather, mine, table, detail=OF_SPLIT)
        work = self._issue(asked, limit, True, at_once=True)
        return self._after_split(work, self._next_child(), int(mine[0]), limit, label)

    # ── how they come about ──────────────────────────────────────────────────────────────────────────

    def _next_child(self) -> int:
        self._children += 1
        return self._children

    async def _after(
        self, work: Work[None], context: int, chosen: tuple[int, ...], timeout: float, name: str
    ) -> Self | None:
        if self.rank not in chosen:
            await work
            self._control.unsubscribe(context)  # what its members tell everybody is not kept here
            await self._stand_by(timeout)
            return None
        await self._concluded(work, context, [self.ranks[member] for member in chosen], "new_group")
        return await self._opened(context, chosen, timeout, name, whole=True)

    async def _after_split(
        self, work: Work[Any], number: int, color: int, timeout: float, name: str
    ) -> Self | None:
        # By its color, not its members: so a rank that never sees the table can name the group, too.
        mine = context_of(self.context, number, (), f"color {color}")
        table = await (work if color == _NO_COLOR else self._concluded(work, mine, (), "split"))
        for other in {int(c) for c in table[:, 0] if c >= 0 and c != color}:
            self._control.unsubscribe(context_of(self.context, number, (), f"color {other}"))
        if color == _NO_COLOR:
            await self._stand_by(timeout)
            return None
        chosen = [rank for rank in range(self.size) if table[rank, 0] == color]
        chosen.sort(key=lambda rank: int(table[rank, 1]))
        label = name or f"{self.name}.{number}[{color}]"
        return await self._opened(mine, tuple(chosen), timeout, label, whole=True)

    async def _concluded(self, work: Work[T], context: int, ranks: Sequence[int], what: str) -> T:
        """The result of the call by which members make a group. Where it fails here, or nobody waits for it
        any more, it may have ended well elsewhere: the others must not wait for this rank in that group.

        Args:
            work: the call.
            context: of the group.
            ranks: global ranks of its members, where they are known.
            what: name of the call.
        """
        try:
            return await work
        except GroupBroken as error:
            self._renounce(context, ranks, error)
            raise
        except asyncio.CancelledError:
            reason = f"its {what}() was cancelled before it had made the group"
            self._renounce(context, ranks, GroupAborted(self.ranks[self.rank], reason))
            raise

    def _renounce(self, context: int, ranks: Sequence[int], error: GroupBroken) -> None:
        """This rank never makes a group: there is nothing here that could tell the others why."""
        self._backend.renounce(context, ranks)
        self._control.unsubscribe(context)
        self._control.flood(Say.broken, context, *pack(error))

    async def _opened(
        self, context: int, chosen: tuple[int, ...], timeout: float, name: str, whole: bool
    ) -> Self:
        """A new group that is ready for use. `whole`: all members of this one take part in making it."""
        group = self._child(context, chosen, timeout, name, whole)
        try:
            await group._ready(timeout)
        except BaseException:
            await group.aclose()
            raise
        return group

    def _meet_locally(
        self, chosen: tuple[int, ...], timeout: float, name: str
    ) -> Coroutine[Any, Any, Self | None]:
        self._check_here()
        if self.rank not in chosen:
            raise UsageError(
                f"rank {self.rank} is not one of {list(chosen)}",
                hint="With use_local_synchronization only members call new_group",
            )
        ranks = [self.ranks[member] for member in chosen]
        number = self._local_children.get(chosen, 0)
        self._local_children[chosen] = number + 1
        context = context_of(self.context, number, ranks, "local")
        group = self._child(context, chosen, timeout, name or f"{self.name}{list(chosen)}.{number}")
        work = group._issue(Request(Kind.barrier, NO_DATA), timeout, True)

        async def met() -> Self | None:
            try:
                await work
                await group._ready(timeout)
            except BaseException:
                await group.aclose()
                raise
            return group

        return met()

    def _child(
        self, context: int, chosen: tuple[int, ...], timeout: float, name: str, whole: bool = False
    ) -> Self:
        ranks = [self.ranks[member] for member in chosen]
        try:
            return type(self)(
                ranks=ranks,
                name=name,
                context=context,
                epoch=self.epoch,
                hosts=[self.hosts[member] for member in chosen],
                timeout=timeout,
                control=self._control,
                make_backend=partial(self._backend.subgroup, whole=whole),
                pulse=self._pulse,
                family=self._family,
            )
        except GroupBroken as error:
            self._renounce(context, ranks, error)
            raise


def _word(value: object, name: str) -> int:
    """An integer that travels as 64 bits."""
    number = check.integer(value, name)
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"{name} must be an integer of 64 bits, got {shown(number)}")
    return number
