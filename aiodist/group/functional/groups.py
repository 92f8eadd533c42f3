"""torch's calls about groups and ranks."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from aiodist.base.errors import UsageError, shown
from aiodist.base.timeouts import Timeout, seconds
from aiodist.group import ProcessGroup
from aiodist.group import arguments as check
from aiodist.group.default import default_group
from aiodist.group.entering import Entering
from aiodist.group.functional.handles import Group, GroupMember, NonMember, group_rank_of, member
from aiodist.group.requests import given

Made = ProcessGroup | NonMember


async def _named(making: Awaitable[ProcessGroup | None]) -> Made:
    made = await making
    return GroupMember.NON_GROUP_MEMBER if made is None else made


def _check_backend(world: ProcessGroup, backend: str | None) -> None:
    if backend is None:
        return
    if not isinstance(backend, str) or backend.lower() not in {world.backend, *world._core.carriers.aliases}:
        raise UsageError(
            f"backend={shown(backend)}: a new group has the backend of its world, '{world.backend}'"
        )


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Entering[Made]:
    """Make a group of some of the world's ranks; all ranks of the world call it, in the same order.

    Args:
        ranks: global ranks; None means all.
        timeout: the new group's default, in seconds.
        backend: None, the world's own, or a part of it: the group has all of it.
        pg_options, device_id: for torch's sake, and not used.
        use_local_synchronization: only the members call, and wait for each other alone.
        group_desc: the group's name, for people.
        sort_ranks: must be True: members are in ascending order.

    Returns:
        What gives the group, or `GroupMember.NON_GROUP_MEMBER`, when it is awaited or entered.
    """
    world = default_group()
    _check_backend(world, backend)
    if not sort_ranks:
        raise UsageError("sort_ranks=False is not supported", hint="Order ranks by `split(color, key)`")
    chosen = check.members(ranks, world.size)
    if use_local_synchronization and world.rank not in chosen:
        return Entering(_outside())
    making = world.new_group(
        chosen,
        timeout=timeout,
        name=check.text(group_desc, "group_desc"),
        use_local_synchronization=use_local_synchronization,
    )
    return Entering(_named(making), making.close)


async def _outside() -> Made:
    return GroupMember.NON_GROUP_MEMBER


async def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Made, list[Made]]:
    """Divide the world into groups of `group_size` consecutive ranks; all ranks await it at the same place.

    Args:
        group_size: ranks in each; None takes the number of ranks on this host, as LOCAL_WORLD_SIZE would.
        group: which to divide; None means the world.
        timeout: the new groups' default, in seconds; None takes the divided group's.
        backend: None or the divided group's own.
        pg_options: for torch's sake, and not used.
        group_desc: the groups' name, for people.

    Returns:
        → this rank's group, and all groups (NON_GROUP_MEMBER for those that it is not in).
    """
    pg = member(group, "new_subgroups")
    if pg is None:
        return GroupMember.NON_GROUP_MEMBER, []
    here = pg.hosts.count(pg.hosts[pg.rank])
    size = here if group_size is None else check.at_least_1(group_size, "group_size")
    if pg.size % size:
        raise UsageError(f"group_size={shown(size)} does not divide the {pg.size} ranks of the group")
    lists = [list(range(start, start + size)) for start in range(0, pg.size, size)]
    return await _divide(pg, lists, timeout, backend, group_desc)


async def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Made, list[Made]]:
    """Make several disjoint groups of global ranks at once. → this rank's, and all, as `new_subgroups`."""
    return await _divide(default_group(), ranks_per_subgroup_list, timeout, backend, group_desc)


async def split_group(
    parent_pg: Group = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Divide a group by lists of its group ranks. → this rank's new group; None if it is in no list."""
    pg = member(parent_pg, "split_group")
    if pg is None:
        return None
    if not given(split_ranks):
        raise UsageError("split_ranks is missing", hint="Pass lists of ranks of the group")
    mine, _ = await _divide(pg, split_ranks, timeout, backend, group_desc)
    return mine if isinstance(mine, ProcessGroup) else None


async def _divide(
    pg: ProcessGroup,
    lists: Any,
    timeout: Timeout,
    backend: str | None,
    name: str | None,
) -> tuple[Made, list[Made]]:
    _check_backend(pg, backend)
    kind = "a list of lists of ranks"
    chosen = [check.members(ranks, pg.size) for ranks in check.some(lists, pg.size + 1, "ranks", kind)]
    listed = [rank for ranks in chosen for rank in ranks]
    if len(set(listed)) != len(listed):
        raise UsageError("a rank is in two subgroups")
    limit = pg.timeout if timeout is None else seconds(timeout)
    label = check.text(name, "group_desc")  # all is checked before the first of them takes a number
    making = [pg.new_group(ranks, timeout=limit, name=label) for ranks in chosen]
    try:
        groups = [await _named(each) for each in making]
    finally:  # where one fails, or is cancelled, the others are never made here either
        for each in making:
            each.close()
    mine = next((made for made in groups if isinstance(made, ProcessGroup)), GroupMember.NON_GROUP_MEMBER)
    return mine, groups


def get_rank(group: Group = None) -> int:
    """This process's rank in the group; -1 if it is no member."""
    if isinstance(group, NonMember):
        return -1
    return _group(group).rank


def get_world_size(group: Group = None) -> int:
    """The number of members of the group; -1 if this process is none."""
    if isinstance(group, NonMember):
        return -1
    return _group(group).size


def get_backend(group: Group = None) -> str:
    """The name of the group's backend."""
    pg = member(group, "get_backend")
    if pg is None:
        raise UsageError("this process is not a member of the group")
    return pg.backend


def get_process_group_ranks(group: Group = None) -> list[int]:
    """The global ranks of the group's members, in group order."""
    pg = member(group, "get_process_group_ranks")
    return [] if pg is None else list(pg.ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The group rank of a global rank; `UsageError` if it is no member."""
    return group_rank_of(_group(group), global_rank)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The global rank of a group rank."""
    pg = _group(group)
    return pg.ranks[check.group_rank(group_rank, pg.size, "group_rank")]


def _group(group: object) -> ProcessGroup:
    """A group of which this process is a member, the default one for None."""
    if group is None:
        return default_group()
    if isinstance(group, ProcessGroup):
        return group
    raise UsageError(f"group must be a ProcessGroup or None, got {shown(group)}")


def get_pg_count() -> int:
    """The number of groups that this process has open, the world's included; 0 where there is none."""
    return sum(not group.closed for group in default_group()._core.family)
