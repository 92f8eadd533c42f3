"""The module-level calls, with torch.distributed's names and signatures.

A thin shell: each finds its group (the loop's default where `group` is None), translates global ranks to
the group's, and calls the method of the same name. `src` and `dst` are global ranks here, as in torch;
`group_src` and `group_dst` are the group's. Every call returns a started `Work` to await.

On a process that is no member of `group` a call warns, does nothing and gives None.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from typing import Any, Final

from aiodist.errors import UsageError
from aiodist.group import shapes
from aiodist.group.default import default_group
from aiodist.group.process_group import ProcessGroup
from aiodist.timeouts import Timeout
from aiodist.types import ReduceOp
from aiodist.work import Work


class _NonMember:
    """What `new_group` gives to a process that is no member, so that it is not taken for the world."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class GroupMember:
    """torch's names for 'the world' and 'not my group'."""

    WORLD: Final = None
    NON_GROUP_MEMBER: Final = _NonMember()


Group = ProcessGroup | _NonMember | None


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


def _member(group: Group, op: str) -> ProcessGroup | None:
    if group is None:
        return default_group()
    if isinstance(group, _NonMember):
        warnings.warn(f"{op}: this process is not a member of the group; nothing is done", stacklevel=3)
        return None
    if not isinstance(group, ProcessGroup):
        raise UsageError(f"group must be a ProcessGroup or None, got {group!r}")
    return group


def _rank_in(group: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str) -> int:
    if group_rank is not None:
        if global_rank is not None:
            raise UsageError(f"pass {name} (a global rank) or group_{name} (a rank of the group), not both")
        return group_rank
    if global_rank is None:
        raise UsageError(f"pass {name} (a global rank) or group_{name} (a rank of the group)")
    return get_group_rank(group, global_rank)


# ── collectives ──────────────────────────────────────────────────────────────────────────────────────


def all_reduce(
    tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Handle:
    """Reduce over all ranks, in place. See `ProcessGroup.all_reduce`."""
    pg = _member(group, "all_reduce")
    return Skipped() if pg is None else pg.all_reduce(tensor, op, async_op=async_op)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Handle:
    """Copy the source's tensor to all ranks, in place. See `ProcessGroup.broadcast`."""
    pg = _member(group, "broadcast")
    if pg is None:
        return Skipped()
    return pg.broadcast(tensor, _rank_in(pg, src, group_src, "src"), async_op=async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Handle:
    """Reduce over all ranks to one. See `ProcessGroup.reduce`; other ranks' tensors stay as they were."""
    pg = _member(group, "reduce")
    if pg is None:
        return Skipped()
    return pg.reduce(tensor, _rank_in(pg, dst, group_dst, "dst"), op, async_op=async_op)


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group = None, async_op: bool = False
) -> Handle:
    """Every rank's tensor into a list of tensors, in place. See `ProcessGroup.all_gather`."""
    pg = _member(group, "all_gather")
    return Skipped() if pg is None else shapes.all_gather(pg, tensor_list, tensor, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Handle:
    """Every rank's tensor into one, stacked or concatenated along the first axis, as its shape says."""
    pg = _member(group, "all_gather_into_tensor")
    return (
        Skipped() if pg is None else shapes.all_gather_into_tensor(pg, output_tensor, input_tensor, async_op)
    )


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Handle:
    """Reduce a list of tensors over all ranks; rank r gets the r-th. See `ProcessGroup.reduce_scatter`."""
    pg = _member(group, "reduce_scatter")
    return Skipped() if pg is None else shapes.reduce_scatter(pg, output, input_list, op, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Handle:
    """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis."""
    pg = _member(group, "reduce_scatter_tensor")
    return Skipped() if pg is None else shapes.reduce_scatter_tensor(pg, output, input, op, async_op)


def barrier(group: Group = None, async_op: bool = False) -> Handle:
    """Return when all ranks have called it."""
    pg = _member(group, "barrier")
    return Skipped() if pg is None else pg.barrier(async_op=async_op)


# ── point to point ───────────────────────────────────────────────────────────────────────────────────


def send(
    tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Handle:
    """Send a tensor. See `ProcessGroup.send`."""
    pg = _member(group, "send")
    return Skipped() if pg is None else pg.send(tensor, _rank_in(pg, dst, group_dst, "dst"), tag)


def isend(
    tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Handle:
    """As `send`, for a caller that keeps the handle."""
    pg = _member(group, "isend")
    if pg is None:
        return Skipped()
    return pg.send(tensor, _rank_in(pg, dst, group_dst, "dst"), tag, async_op=True)


def recv(
    tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Handle:
    """Receive a tensor, from anybody where no source is given. → the sender's global rank."""
    return _recv(tensor, src, group, tag, group_src, "recv", held=False)


def irecv(
    tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Handle:
    """As `recv`, for a caller that keeps the handle."""
    return _recv(tensor, src, group, tag, group_src, "irecv", held=True)


def _recv(
    tensor: Any, src: int | None, group: Group, tag: int, group_src: int | None, name: str, held: bool
) -> Handle:
    pg = _member(group, name)
    if pg is None:
        return Skipped()
    anybody = src is None and group_src is None
    source = None if anybody else _rank_in(pg, src, group_src, "src")
    return shapes.recv(pg, tensor, source, tag, held)


# ── groups and ranks ─────────────────────────────────────────────────────────────────────────────────


async def _named(making: Any) -> ProcessGroup | _NonMember:
    made = await making
    return GroupMember.NON_GROUP_MEMBER if made is None else made


def new_group(ranks: Sequence[int] | None = None, timeout: Timeout = None, backend: str | None = None) -> Any:
    """Make a group of some of the world's ranks; all ranks of the world call it, in the same order.

    Args:
        ranks: global ranks; None means all.
        timeout: the new group's default, in seconds.
        backend: None or the world's own.

    Returns:
        An awaitable of the group, or of `GroupMember.NON_GROUP_MEMBER`.
    """
    world = default_group()
    if backend not in (None, world.backend, "gloo" if world.backend == "host" else None):
        raise UsageError(f"backend={backend!r}: a new group has the backend of its world, '{world.backend}'")
    return _named(world.new_group(ranks, timeout=timeout))


def get_rank(group: Group = None) -> int:
    """This process's rank in the group; -1 if it is no member."""
    if isinstance(group, _NonMember):
        return -1
    return (group or default_group()).rank


def get_world_size(group: Group = None) -> int:
    """The number of members of the group; -1 if this process is none."""
    if isinstance(group, _NonMember):
        return -1
    return (group or default_group()).size


def get_backend(group: Group = None) -> str:
    """The name of the group's backend."""
    pg = _member(group, "get_backend")
    if pg is None:
        raise UsageError("this process is not a member of the group")
    return pg.backend


def get_process_group_ranks(group: Group = None) -> list[int]:
    """The global ranks of the group's members, in group order."""
    pg = _member(group, "get_process_group_ranks")
    return [] if pg is None else list(pg.ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The group rank of a global rank; `UsageError` if it is no member."""
    try:
        return group.ranks.index(global_rank)
    except ValueError:
        raise UsageError(f"global rank {global_rank} is not a member of group '{group.name}'") from None


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The global rank of a group rank."""
    if not 0 <= group_rank < group.size:
        raise UsageError(f"group '{group.name}' has ranks 0 to {group.size - 1}, not {group_rank}")
    return group.ranks[group_rank]
