"""Groups made of a group's members."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from aiodist.backends.forgotten import Origin
from aiodist.backends.work import Work
from aiodist.base.errors import GroupAborted, GroupBroken, UsageError, shown
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, Kind
from aiodist.group import arguments as check
from aiodist.group.breakage import pack
from aiodist.group.control.messages import Say
from aiodist.group.core import GroupCore
from aiodist.group.entering import Entering
from aiodist.group.requests import NO_DATA, Request, internal
from aiodist.group.roster import context_of
from aiodist.net.tasks import Tasks

T = TypeVar("T")

_NO_COLOR = -1

logger = logging.getLogger("aiodist.group.subgroups")


class Subgroups:
    """The maker of groups of some of a group's members.

    The calls take what users hold of the group, `owner`, and keep it: the group must not be closed before
    the new one is made, even if the program has dropped it. Of the new group users hold the same kind.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._roster = core.roster
        self._closing = Tasks()

    def new_group(
        self, owner: object, ranks: Sequence[int] | None, timeout: Timeout, name: str, locally: bool
    ) -> Entering[Any]:
        """Make a group of some members; see `ProcessGroup.new_group`."""
        core, roster = self._core, self._roster
        chosen = check.members(ranks, roster.size)
        label = check.text(name, "name")
        limit = core.limit(timeout)
        if locally:
            return self._meet_locally(owner, chosen, limit, label)
        detail = f"ranks {list(chosen)}"
        work = core.issue(Request(Kind.new_group, NO_DATA, detail=detail), limit, True, at_once=True)
        number = self._next_child()
        members = [roster.ranks[member] for member in chosen]
        context = context_of(roster.context, number, members)
        if core.error is None:
            core.carriers.splitting(context, chosen)
        return Entering(
            self._after(owner, work, context, chosen, limit, label or f"{roster.name}.{number}"),
            partial(self._soon, self._given_up, "new_group", context, members)
            if roster.rank in chosen
            else None,
        )

    def split(self, owner: object, color: int | None, key: int, timeout: Timeout, name: str) -> Entering[Any]:
        """Divide the group by a colour; see `ProcessGroup.split`."""
        mine = np.array([_NO_COLOR if color is None else _word(color, "color"), _word(key, "key")], np.int64)
        if color is not None and mine[0] < 0:
            raise UsageError(f"color must be a non-negative integer or None, got {int(mine[0])}")
        label = check.text(name, "name")
        limit = self._core.limit(timeout)
        table = np.empty((self._roster.size, 2), np.int64)
        asked = internal(Kind.all_gather, mine, table, detail=f"{AS}split()")
        work = self._core.issue(asked, limit, True, at_once=True)
        number, chosen = self._next_child(), int(mine[0])
        return Entering(
            self._after_split(owner, work, number, chosen, limit, label),
            partial(self._soon, self._given_up, "split", self._context_of_color(number, chosen), ())
            if chosen != _NO_COLOR
            else None,
        )

    # ── how they are made ─────────────────────────────────────────────────────────────────────────────

    def _next_child(self) -> int:
        return self._core.numbers.next_of("children") + 1

    def _context_of_color(self, number: int, color: int) -> int:
        """By its color, not its members: so a rank that never sees the table can name the group, too."""
        return context_of(self._roster.context, number, (), f"color {color}")

    async def _after(
        self,
        owner: object,
        work: Work[None],
        context: int,
        chosen: tuple[int, ...],
        timeout: float,
        name: str,
    ) -> Any:
        if self._roster.rank not in chosen:
            await work
            self._core.control.unsubscribe(context)  # what its members tell all ranks is not kept here
            await self._core.stand_by(timeout)
            return None
        ranks = [self._roster.ranks[member] for member in chosen]
        await self._concluded(work, context, ranks, "new_group")
        child = self._child(owner, context, chosen, timeout, name, whole=True)
        return await self._connected(*child, timeout, work._line())

    async def _after_split(
        self, owner: object, work: Work[Any], number: int, color: int, timeout: float, name: str
    ) -> Any:
        roster, control = self._roster, self._core.control
        mine = self._context_of_color(number, color)
        table = await (work if color == _NO_COLOR else self._concluded(work, mine, (), "split"))
        for other in {int(c) for c in table[:, 0] if c >= 0 and c != color}:
            control.unsubscribe(self._context_of_color(number, other))
        if color == _NO_COLOR:
            await self._core.stand_by(timeout)
            return None
        chosen = [rank for rank in range(roster.size) if table[rank, 0] == color]
        chosen.sort(key=lambda rank: int(table[rank, 1]))
        label = name or f"{roster.name}.{number}[{color}]"
        child = self._child(owner, mine, chosen, timeout, label, whole=True)
        return await self._connected(*child, timeout, work._line())

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
            self._will_not_join(context, ranks, error)
            raise
        except asyncio.CancelledError:
            self._given_up(what, context, ranks)
            raise
        except GeneratorExit:  # closed, or dropped and collected
            self._soon(self._given_up, what, context, ranks)
            raise

    def _given_up(self, what: str, context: int, ranks: Sequence[int]) -> None:
        """Tell the others that nobody waits for the call here any more, which makes the group."""
        reason = f"its {what}() was cancelled before it had made the group"
        self._will_not_join(context, ranks, GroupAborted(self._roster.me, reason))

    def _soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop call a function. A collector has this called anywhere, and in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._core.loop.call_soon_threadsafe(function, *args)

    def _will_not_join(self, context: int, ranks: Sequence[int], error: GroupBroken) -> None:
        """Tell the others that this rank never makes a group: nothing else here could tell them why."""
        logger.debug(
            "a group of '%s' is never made on rank %d: %s", self._roster.name, self._roster.me, error
        )
        self._core.carriers.will_not_join(context, ranks)
        self._core.control.unsubscribe(context)
        self._core.control.flood(Say.broken, context, *pack(error))

    def _meet_locally(
        self, owner: object, chosen: tuple[int, ...], timeout: float, name: str
    ) -> Entering[Any]:
        core, roster = self._core, self._roster
        core.check_here()
        if roster.rank not in chosen:
            raise UsageError(
                f"rank {roster.rank} is not one of {list(chosen)}",
                hint="With use_local_synchronization only members call new_group",
            )
        number = core.numbers.next_of(chosen)
        context = context_of(roster.context, number, [roster.ranks[member] for member in chosen], "local")
        label = name or f"{roster.name}{list(chosen)}.{number}"
        group, made = self._child(owner, context, chosen, timeout, label)
        work = group.issue(Request(Kind.barrier, NO_DATA), timeout, True)
        origin = work._line()._replace(op="new_group")
        return Entering(
            self._connected(group, made, timeout, origin, work), partial(self._soon, self._close, group)
        )

    def _close(self, group: GroupCore) -> None:
        """Close a group that the others make with this rank, and nobody here waits for."""

        async def close() -> None:
            with contextlib.suppress(Exception):  # nobody has the group
                await group.aclose()

        self._closing.start(close())

    async def _connected(
        self, group: GroupCore, made: Any, timeout: float, origin: Origin, met: Work[None] | None = None
    ) -> Any:
        """Make a new group ready → what users hold of it.

        Args:
            group, made: its core, and what users hold.
            origin: the line that has made it.
            met: to be awaited first.
        """
        group.origin = origin
        try:
            if met is not None:
                await met
            await group.connect(timeout)
        except BaseException:
            await group.aclose()
            raise
        return made

    def _child(
        self,
        owner: object,
        context: int,
        chosen: Sequence[int],
        timeout: float,
        name: str,
        whole: bool = False,
    ) -> tuple[GroupCore, Any]:
        """Make a new group → its core, and what users hold of it.

        Args:
            whole: all members of this one take part in that.
        """
        core, roster = self._core, self._roster.of(chosen, name, context)
        try:
            group = type(core)(
                *(roster, timeout, core.control, partial(core.carriers.subgroup, whole=whole)),
                family=core.family,
                recorder=core.recorder,
            )
        except GroupBroken as error:
            self._will_not_join(context, roster.ranks, error)
            raise
        hold: Callable[[GroupCore], Any] = type(owner)
        return group, hold(group)


def _word(value: object, name: str) -> int:
    """An integer that travels as 64 bits."""
    number = check.integer(value, name)
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"{name} must be an integer of 64 bits, got {shown(number)}")
    return number
