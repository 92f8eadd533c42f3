"""Messages between two ranks of a group."""

from __future__ import annotations

from typing import Any

from aiodist.errors import UsageError
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.timeouts import Timeout
from aiodist.types import Kind
from aiodist.work import Work


class PointToPoint:
    """Checks messages and issues them.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._roster = core.roster
        self._issue = core.issue

    def send(self, tensor: Any, dst: int, tag: int, timeout: Timeout, async_op: bool) -> Work[None]:
        """As `ProcessGroup.send`."""
        peer = check.peer_rank(dst, self._roster.rank, self._roster.size, "dst")
        number = check.message_tag(tag)
        source = check.readable(tensor, "tensor")
        return self._issue(Kind.send, source, source, None, None, timeout, async_op, peer=peer, tag=number)

    def recv(self, tensor: Any, src: int | None, tag: int, timeout: Timeout, async_op: bool) -> Work[int]:
        """As `ProcessGroup.recv`."""
        peer = source_rank(src, self._roster.rank, self._roster.size)
        number = check.message_tag(tag)
        target = check.writable(tensor, "tensor")
        return self._issue(
            *(Kind.recv, target, None, target, None, timeout, async_op),
            peer=peer,
            tag=number,
            senders=range(self._roster.size),
        )


def source_rank(src: int | None, me: int, size: int) -> int:
    """The rank that a message is received from; -1 takes one from anybody.

    Raises:
        UsageError: it is no other rank of the group, or there is none.
    """
    peer = -1 if src is None else check.peer_rank(src, me, size, "src")
    if size == 1:
        raise UsageError("a group of one has nobody to receive from")
    return peer
