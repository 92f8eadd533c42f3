"""Messages between two ranks of a group."""

from __future__ import annotations

from typing import Any

from aiodist.errors import UsageError
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.group.requests import Request
from aiodist.timeouts import Timeout
from aiodist.types import Kind
from aiodist.work import Work


class PointToPoint(GroupCore):
    """See `ProcessGroup` for what all calls have in common."""

    def send(
        self, tensor: Any, dst: int, tag: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[None]:
        """Send a tensor to one rank.

        The Work may be done before the receive is posted for messages of up to 8 KiB, while at most 64 KiB
        are under way so; a larger message waits for its receive. The first message from one rank to another
        waits until the event loop there turns: the two connect with it.

        Args:
            tensor: any shape; read.
            dst: group rank of the receiver.
            tag: 0 to 2³¹ - 2; messages are matched by source and tag, in order.

        Returns:
            → None.
        """
        peer = check.peer_rank(dst, self.rank, self.size, "dst")
        number = check.message_tag(tag)
        source = check.readable(tensor, "tensor")
        asked = Request(Kind.send, (source.dtype, source.shape), source, peer=peer, tag=number)
        return self._issue(asked, timeout, async_op)

    def recv(
        self,
        tensor: Any,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[int]:
        """Receive a tensor from one rank.

        Args:
            tensor: of the message's dtype and number of elements; overwritten.
            src: group rank of the sender; None takes the first message with this tag from anybody.
            tag: of the message.

        Returns:
            → the group rank of the sender.
        """
        peer = -1 if src is None else check.peer_rank(src, self.rank, self.size, "src")
        if self.size == 1:
            raise UsageError("a group of one has nobody to receive from")
        number = check.message_tag(tag)
        target = check.writable(tensor, "tensor")
        asked = Request(
            *(Kind.recv, (target.dtype, target.shape), None, target),
            peer=peer,
            tag=number,
            senders=range(self.size),
        )
        return self._issue(asked, timeout, async_op)
