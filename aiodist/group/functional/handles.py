"""The group that a call is for, and what a non-member gets."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import Any, Final

from aiodist.backends.work import Work
from aiodist.base.errors import UsageError, shown
from aiodist.base.timeouts import Timeout
from aiodist.group import ProcessGroup
from aiodist.group import arguments as check
from aiodist.group.default import default_group


class NonMember:
    """The result of `new_group` on a non-member, so that it is not taken for the world."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class GroupMember:
    """torch's names for 'the world' and 'not my group'."""

    WORLD: Final = None
    NON_GROUP_MEMBER: Final = NonMember()


Group = ProcessGroup | NonMember | None


class Skipped:
    """The awaitable that a non-member gets: done, and None."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield

    async def wait(self, timeout: Timeout = None) -> None:
        """None, at once."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True


Handle = Work[Any] | Skipped


def member(group: Group, op: str, depth: int = 3) -> ProcessGroup | None:
    if group is None:
        return default_group()
    if isinstance(group, NonMember):
        warnings.warn(f"{op}: this process is not a member of the group; nothing is done", stacklevel=depth)
        return None
    if not isinstance(group, ProcessGroup):
        raise UsageError(f"group must be a ProcessGroup or None, got {shown(group)}")
    return group


def rank_in(group: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str) -> int:
    """The group rank that a call means, by a global rank or the group's own."""
    if group_rank is not None:
        if global_rank is not None:
            raise UsageError(f"pass {name} (a global rank) or group_{name} (a rank of the group), not both")
        return group_rank
    if global_rank is None:
        raise UsageError(f"pass {name} (a global rank) or group_{name} (a rank of the group)")
    return group_rank_of(group, global_rank)


def root_in(group: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str) -> int:
    """The rank of the root in the group, of a global or a group rank; rank 0 where neither is given."""
    source = source_in(group, global_rank, group_rank, name)
    return 0 if source is None else source


def source_in(
    group: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str = "src"
) -> int | None:
    """The rank of a sender in the group, of a global or a group rank; None (anybody) if neither is given."""
    if global_rank is None and group_rank is None:
        return None
    return rank_in(group, global_rank, group_rank, name)


def group_rank_of(group: ProcessGroup, global_rank: int) -> int:
    """The group rank of a global rank; `UsageError` if it is no member."""
    rank = check.integer(global_rank, "a global rank")
    try:
        return group.ranks.index(rank)
    except ValueError:
        raise UsageError(f"global rank {shown(rank)} is not a member of group '{group.name}'") from None
