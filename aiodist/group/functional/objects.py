"""torch's collectives of objects: lists that are filled in place.

Objects travel as msgpack (see `ProcessGroup.all_gather_object`); with `allow_pickle=True` on both sides the
rest travels as pickle, which torch always uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiodist.backends.work import Work
from aiodist.base.errors import UsageError, shown
from aiodist.group import ProcessGroup
from aiodist.group.functional.handles import Group, Handle, Skipped, member, rank_in, root_in, source_in


def _fill(
    pg: ProcessGroup, work: Work[Any], put: Callable[[Any], None], async_op: bool = False
) -> Work[None]:
    """A Work that puts another's result where torch wants it."""

    async def fill() -> None:
        put(await work._as_step())

    return pg._core.compose(work, fill, async_op)


def _check_list(value: Any, size: int, name: str) -> None:
    if not isinstance(value, list) or len(value) != size:
        raise UsageError(f"{name} must be a list of {size} elements, which are overwritten")


def _check_any_list(value: Any) -> None:
    if not isinstance(value, list):
        raise UsageError(f"object_list must be a list, got {shown(value)}")


def _check_safe(weights_only: bool, allow_pickle: bool) -> None:
    if weights_only and allow_pickle:
        raise UsageError(
            "weights_only=True forbids pickle, and allow_pickle=True allows it", hint="Leave one of them out"
        )


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Gather every rank's object into a list, in place. → None. See `ProcessGroup.all_gather_object`.

    Args:
        object_list: list of `size` elements; overwritten, in rank order.
        obj: this rank's object; encoded in the call, so it may be changed at once.
        weights_only: torch's word for "nothing is unpickled", which holds here without `allow_pickle` in any
            case: True beside that is refused.
        allow_pickle: what msgpack cannot carry travels as pickle; the receiving ranks must allow it, too.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "all_gather_object")
    if pg is None:
        return Skipped()
    _check_list(object_list, pg.size, "object_list")
    work = pg.all_gather_object(obj, allow_pickle=allow_pickle, async_op=True)
    return _fill(pg, work, lambda objects: object_list.__setitem__(slice(None), objects))


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Gather every rank's object into a list on the destination, in place. → None.

    Args:
        obj: this rank's object; encoded in the call.
        object_gather_list: on the destination, list of `size` elements; overwritten, in rank order.
        dst: global rank of the destination; or
        group_dst: its rank in the group. The group's rank 0 where neither is given.
        weights_only, allow_pickle: as in `all_gather_object`.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "gather_object")
    if pg is None:
        return Skipped()
    root = root_in(pg, dst, group_dst, "dst")
    if pg.rank == root:
        _check_list(object_gather_list, pg.size, "object_gather_list")
    work = pg.gather_object(obj, root, allow_pickle=allow_pickle, async_op=True)

    def put(objects: list[Any] | None) -> None:
        if objects is not None and object_gather_list is not None:
            object_gather_list[:] = objects

    return _fill(pg, work, put)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Overwrite all ranks' lists with the source's, in place. → None.

    Args:
        object_list: a list of the same length on all ranks; read on the source, overwritten elsewhere.
        src: global rank of the source; or
        group_src: its rank in the group. The group's rank 0 where neither is given.
        device: for torch's sake.
        weights_only, allow_pickle: as in `all_gather_object`.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "broadcast_object_list")
    if pg is None:
        return Skipped()
    _check_any_list(object_list)
    root = root_in(pg, src, group_src, "src")
    work = pg.broadcast_object(
        list(object_list) if pg.rank == root else None, root, allow_pickle=allow_pickle, async_op=True
    )
    return _fill(pg, work, lambda objects: _replace(object_list, objects))


def _replace(target: list[Any], objects: list[Any]) -> None:
    if len(target) != len(objects):
        raise UsageError(f"object_list has {len(target)} elements, the source's has {len(objects)}")
    target[:] = objects


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Distribute the source's list over all ranks. → None.

    Args:
        scatter_object_output_list: its first element is overwritten with this rank's object.
        scatter_object_input_list: on the source, `size` objects. On other ranks it is ignored.
        src: global rank of the source; or
        group_src: its rank in the group. The group's rank 0 where neither is given.
        weights_only, allow_pickle: as in `all_gather_object`.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "scatter_object_list")
    if pg is None:
        return Skipped()
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise UsageError("scatter_object_output_list must be a list with at least one element")
    root = root_in(pg, src, group_src, "src")
    work = pg.scatter_object(scatter_object_input_list, root, allow_pickle=allow_pickle, async_op=True)
    return _fill(pg, work, lambda obj: scatter_object_output_list.__setitem__(0, obj))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Send a list of objects to one rank. → None.

    Args:
        object_list: encoded in the call, so it may be changed at once.
        dst: global rank of the receiver; or
        group_dst: its rank in the group.
        device, use_batch: for torch's sake.
        weights_only, allow_pickle: as in `all_gather_object`.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "send_object_list")
    if pg is None:
        return Skipped()
    _check_any_list(object_list)
    return pg.send_object(list(object_list), rank_in(pg, dst, group_dst, "dst"), allow_pickle=allow_pickle)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    allow_pickle: bool = False,
) -> Handle:
    """Receive a list of objects from one rank, or from anybody, in place. → the sender's global rank.

    Args:
        object_list: as long as the sender's; overwritten.
        src: global rank of the sender; or
        group_src: its rank in the group. Neither: the first that comes.
        device, use_batch: for torch's sake.
        weights_only, allow_pickle: as in `all_gather_object`.
    """
    _check_safe(weights_only, allow_pickle)
    pg = member(group, "recv_object_list")
    if pg is None:
        return Skipped()
    _check_any_list(object_list)

    def put(sender: int, objects: list[Any]) -> int:
        _replace(object_list, objects)
        return pg.ranks[sender]

    return pg._objects.receive(source_in(pg, src, group_src), 0, allow_pickle, None, False, put)
