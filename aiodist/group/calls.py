"""The part of a group with calls between two processes: a rank of the group becomes a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from aiodist.base.errors import AiodistError, UnreadableMessage, UsageError, shown
from aiodist.base.timeouts import Timeout
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.group.services import records
from aiodist.group.services.handlers import known
from aiodist.group.services.mailbox import Unread
from aiodist.group.services.stream import Stream
from aiodist.group.services.switchboard import Switchboard
from aiodist.net.wire.calls import Says

_CALL = Says.CALL  # members of an enum are slow


class Calls:
    """The calls of a group, which belong to the process, and not to the group.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._roster = core.roster
        self._members: list[bytes] = []
        self._switchboard: Switchboard | None = None

    def handler(self, function: Any, name: str | None, limit: int | None) -> Any:
        """Register a function that other ranks call by its name; see `ProcessGroup.handler`."""
        handlers = self._services().handlers
        if function is None:
            return lambda function: self.handler(function, name, limit)
        handlers.register(function, name, limit)
        return function

    def call(
        self, rank: int, handler: Any, args: tuple[Any, ...], timeout: Timeout
    ) -> Coroutine[Any, Any, Any]:
        """Call a handler of another rank; see `ProcessGroup.call`."""
        services, uid, rank, limit = self._towards(rank, timeout)
        if type(handler) is str:
            return services.ask(_CALL, uid, rank, known(handler), [*args], limit)
        name, build = self._known(services, handler, stream=False)
        return services.ask(_CALL, uid, rank, name, [*args], limit, build)

    def stream(self, rank: int, handler: Any, args: tuple[Any, ...], timeout: Timeout) -> Stream[Any]:
        """Open a stream of a handler's values; see `ProcessGroup.stream`."""
        services, uid, rank, limit = self._towards(rank, timeout)
        if type(handler) is str:
            return services.stream(uid, rank, known(handler), args, limit, None)
        name, build = self._known(services, handler, stream=True)
        return services.stream(uid, rank, name, args, limit, build)

    async def send_message(self, rank: int, message: Any, timeout: Timeout) -> None:
        """Send a message to another rank's mailbox; see `ProcessGroup.send_message`."""
        services, uid, rank, limit = self._towards(rank, timeout)
        await services.ask(Says.MESSAGE, uid, rank, "", message, limit)

    def messages(self) -> AsyncIterator[tuple[int | None, Any]]:
        """The messages that come to this rank's mailbox; see `ProcessGroup.messages`."""
        services, ranks = self._services(), {uid: rank for rank, uid in enumerate(self._uids())}
        return Messages(services, ranks)

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────

    def _services(self) -> Switchboard:
        self._core.check_here(closed_is_wrong=False)  # a group whose place another took still names processes
        services = self._switchboard
        if services is None:
            regroup = self._core.family.regroup
            services = self._switchboard = None if regroup is None else regroup.services
            if services is None:
                name = self._roster.name
                raise UsageError(f"group '{name}' belongs to no job whose processes call each other")
        services.check_open()
        return services

    def _uids(self) -> list[bytes]:
        """The members' uids, in group order. A group names the same processes for ever."""
        if not self._members:
            regroup = self._core.family.regroup
            assert regroup is not None
            self._members = [regroup.uids[rank] for rank in self._roster.ranks]
        return self._members

    def _towards(self, rank: Any, timeout: Timeout) -> tuple[Switchboard, bytes, int, float]:
        services, core = self._switchboard, self._core
        if services is None or services.peers.closed:
            services = self._services()
        else:
            core.check_here(closed_is_wrong=False)  # as `_services` does
        members = self._members or self._uids()
        if type(rank) is not int or not 0 <= rank < len(members):
            rank = check.group_rank(rank, len(members), "rank")
        limit = core.timeout if timeout is None else core.limit(timeout)
        return services, members[rank], rank, limit

    def _known(
        self, services: Switchboard, function: Any, *, stream: bool
    ) -> tuple[str, records.Build | None]:
        """The name of a handler that was given as a function, and what builds its result."""
        if not callable(function):
            raise UsageError(f"a handler is named by its name or its function, got {shown(function)}")
        if getattr(function, "__name__", "") == "<lambda>" and function not in services.handlers.names:
            raise UsageError(
                "a lambda has no name by which a handler could be found",
                hint="Pass the handler's name, or the function that is registered as a handler",
            )
        return services.handlers.name(function), records.returned(function, stream=stream)


def by_position(named: Iterable[str]) -> UsageError:
    """The error for a call with keyword arguments."""
    return UsageError(
        f"a call has no keyword arguments but timeout, got {', '.join(named)}",
        hint="The arguments of a handler go by position, behind its name",
    )


def _unreadable(sender: int | None, why: AiodistError) -> UnreadableMessage:
    whose = "a process that is no member" if sender is None else f"rank {sender}"
    words = f"a message of {whose} cannot be read: {why.message}"
    return UnreadableMessage(words, sender=sender, hint=why.hint)


class Messages:
    """The messages that come, as (sender, message); see `ProcessGroup.messages`."""

    def __init__(self, services: Switchboard, ranks: dict[bytes, int]) -> None:
        self._services = services
        self._ranks = ranks
        self._stranger = b""  # who has sent the last message that no member sent

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> tuple[int | None, Any]:
        try:
            taken = await self._services.take()
        except Unread as unread:
            raise _unreadable(self._rank_of(unread.sender), unread.why) from unread.why
        if taken is None:
            raise StopAsyncIteration
        uid, message = taken
        return self._rank_of(uid), message

    def give_back(self, taken: tuple[int | None, Any]) -> None:
        """Have a message taken again, first of all: its taker could not have it."""
        sender, message = taken
        self._services.mailbox.give_back(self._uid_of(sender), message)

    def fail_again(self, error: BaseException) -> None:
        """Have the error of a message raised again, first of all: its taker has not heard of it."""
        if isinstance(error, UnreadableMessage) and error.__cause__ is not None:
            self._services.mailbox.fail_again(self._uid_of(error.sender), error.__cause__)

    def _rank_of(self, uid: bytes) -> int | None:
        rank = self._ranks.get(uid)
        if rank is None:
            self._stranger = uid
        return rank

    def _uid_of(self, sender: int | None) -> bytes:
        uids = (uid for uid, rank in self._ranks.items() if rank == sender)
        return next(uids, self._stranger)
