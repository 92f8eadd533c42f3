"""torch's messages between two ranks, one by one and in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.base.errors import UsageError, shown
from aiodist.group import shapes
from aiodist.group.functional.handles import Group, Handle, Skipped, member, rank_in, source_in


def send(
    tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Handle:
    """Send a tensor. → None. See `ProcessGroup.send`.

    Args:
        dst: global rank of the receiver; or
        group_dst: its rank in the group.
        tag: messages are matched by source and tag, in order.
    """
    pg = member(group, "send")
    return Skipped() if pg is None else pg.send(tensor, rank_in(pg, dst, group_dst, "dst"), tag)


def isend(
    tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Handle:
    """Send a tensor, for a caller that keeps the handle. See `send`."""
    pg = member(group, "isend")
    if pg is None:
        return Skipped()
    return pg.send(tensor, rank_in(pg, dst, group_dst, "dst"), tag, async_op=True)


def recv(
    tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Handle:
    """Receive a tensor. → the sender's global rank. See `ProcessGroup.recv`.

    Args:
        tensor: of the message's dtype and number of elements; overwritten.
        src: global rank of the sender; or
        group_src: its rank in the group. Neither: the first message with this tag from anybody.
        tag: of the message.
    """
    return _recv(tensor, src, group, tag, group_src, "recv", held=False)


def irecv(
    tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Handle:
    """Receive a tensor, for a caller that keeps the handle. See `recv`."""
    return _recv(tensor, src, group, tag, group_src, "irecv", held=True)


def _recv(
    tensor: Any, src: int | None, group: Group, tag: int, group_src: int | None, name: str, held: bool
) -> Handle:
    pg = member(group, name, depth=4)
    if pg is None:
        return Skipped()
    return shapes.recv(pg, tensor, source_in(pg, src, group_src), tag, held)


@dataclass(frozen=True)
class P2POp:
    """One message of a batch.

    Args:
        op: `dist.isend` or `dist.irecv`.
        tensor: that is sent, or received into.
        peer: global rank of the other side; or
        group: whose messages these are; all of a batch are of one group.
        tag: of the message.
        group_peer: the other side's rank in the group, instead of `peer`.
    """

    op: Callable[..., Handle]
    tensor: Any
    peer: int | None = None
    group: Group = None
    tag: int = 0
    group_peer: int | None = None

    def __post_init__(self) -> None:
        if self.op is not isend and self.op is not irecv:
            raise UsageError(f"op must be dist.isend or dist.irecv, got {shown(self.op)}")


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Handle]:
    """Start all messages of a batch, so that none waits for another. Await the handles, in any order."""
    if not isinstance(p2p_op_list, list | tuple) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise UsageError(f"p2p_op_list must be a list of P2POp, got {shown(p2p_op_list)}")
    if not p2p_op_list:
        raise UsageError("p2p_op_list is empty")
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise UsageError("all messages of a batch must be of one group")
    pg = member(p2p_op_list[0].group, "batch_isend_irecv")
    if pg is None:
        return [Skipped() for _ in p2p_op_list]
    for op in p2p_op_list:  # all, before any is under way
        sends = op.op is isend
        in_group = rank_in if sends else source_in
        shapes.check_message(pg, op.tensor, in_group(pg, op.peer, op.group_peer, "peer"), op.tag, sends=sends)
    return [op.op(op.tensor, op.peer, op.group, op.tag, op.group_peer) for op in p2p_op_list]
