"""The process group: what users hold."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.errors import UsageError
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.timeouts import Timeout, seconds
from aiodist.types import Kind, ReduceOp, check_reduction
from aiodist.work import Work

_NO_DATA = (np.dtype(np.uint8), (0,))


def context_of(parent: int, number: int, ranks: Sequence[int], name: str = "") -> int:
    """The 64-bit number that names a group, equal on all members without asking.

    Args:
        parent: the parent group's context; 0 for a world.
        number: of the new group among its parent's children.
        ranks: global ranks of the members.
        name: of a world (job, group name, epoch).
    """
    text = f"{parent}/{number}/{','.join(map(str, ranks))}/{name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class ProcessGroup(GroupCore):
    """A fixed set of processes that communicate. Made by `init_process_group` and `new_group`.

    Every operation is a plain method that starts it at once and returns a `Work`; `await` gives the
    result. Members issue the same collectives in the same order (law 1). Tensors are borrowed until the
    Work is done (law 6): NumPy arrays and whatever shares memory with one. Ranks are group ranks.

    All operations take
        timeout: seconds, or a timedelta; None takes the group's. When it passes, the group breaks.
        async_op: False says "I await it here": a Work dropped un-awaited warns. True: "I hold the handle".
    and raise
        UsageError: at the call, before anything is sent and without taking a number.
        GroupClosed: at the call, after `aclose`.
        GroupBroken: from the Work: `PeerLost`, `CollectiveTimeout`, `CollectiveMismatch`, `GroupAborted`. The
            group does no more work; tensors of failed in-place operations are undefined.

    Attributes:
        rank: of this process in the group.
        size: number of members.
        ranks: the members' global ranks, in group order.
        name: for people.
        epoch: counts membership changes, 0 at first.
        hosts: name of each member's host, in group order.
    """

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────

    def all_reduce(
        self,
        tensor: Any,
        op: ReduceOp = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks; every rank gets the bitwise same result.

        Args:
            tensor: any shape, equal on all ranks. Overwritten with the result unless `out` is given.
            op: how elements combine.
            out: where the result goes instead; same shape and dtype. The input then survives a failure.

        Returns:
            → `tensor`, or `out`.
        """
        if out is None:
            source = target = check.writable(tensor, "tensor")
            result = tensor
        else:
            source = check.readable(tensor, "tensor")
            result, target = check.output(out, tensor, source, source.shape)
        check_reduction(op, source.dtype)
        return self._issue(Kind.all_reduce, source, source, target, result, timeout, async_op, reduce=op)

    def broadcast(
        self, tensor: Any, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Copy `src`'s tensor to all ranks.

        Args:
            tensor: same shape and dtype on all ranks; read on `src`, overwritten elsewhere.
            src: group rank that has the data.

        Returns:
            → `tensor`.
        """
        root = check.group_rank(src, self.size, "src")
        array = check.readable(tensor, "tensor") if root == self.rank else check.writable(tensor, "tensor")
        return self._issue(Kind.broadcast, array, array, array, tensor, timeout, async_op, root=root)

    def reduce(
        self,
        tensor: Any,
        dst: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks to one.

        Args:
            tensor: same shape and dtype on all ranks. On `dst` it is overwritten with the result unless `out`
                is given; elsewhere it is left as it was.
            dst: group rank that gets the result.
            op: how elements combine.
            out: on `dst`, where the result goes instead.

        Returns:
            → `tensor` or `out` on `dst`, None elsewhere.
        """
        root = check.group_rank(dst, self.size, "dst")
        target: Array | None = None
        result: Any = None
        if root != self.rank:
            source = check.readable(tensor, "tensor")
        elif out is None:
            source = target = check.writable(tensor, "tensor")
            result = tensor
        else:
            source = check.readable(tensor, "tensor")
            result, target = check.output(out, tensor, source, source.shape)
        check_reduction(op, source.dtype)
        return self._issue(
            Kind.reduce, source, source, target, result, timeout, async_op, reduce=op, root=root
        )

    def all_gather(
        self, tensor: Any, out: Any = None, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Every rank gets every rank's tensor.

        Args:
            tensor: same shape and dtype on all ranks; read.
            out: array of shape `(size, *tensor.shape)` for the result; a new one by default.

        Returns:
            → array of shape `(size, *tensor.shape)`; row r is rank r's tensor.
        """
        source = check.readable(tensor, "tensor")
        result, target = check.output(out, tensor, source, (self.size, *source.shape))
        return self._issue(Kind.all_gather, source, source, target, result, timeout, async_op)

    def reduce_scatter(
        self,
        tensor: Any,
        out: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks, and give rank r the r-th part of the first axis.

        Args:
            tensor: same shape and dtype on all ranks; the first axis is divisible by `size`. Read.
            out: array of shape `(tensor.shape[0] // size, *tensor.shape[1:])`; a new one by default.
            op: how elements combine.

        Returns:
            → this rank's part of the reduction.
        """
        source = check.readable(tensor, "tensor")
        result, target = check.output(out, tensor, source, check.split_axis(source, self.size))
        check_reduction(op, source.dtype)
        return self._issue(Kind.reduce_scatter, source, source, target, result, timeout, async_op, reduce=op)

    def barrier(self, *, timeout: Timeout = None, async_op: bool = False) -> Work[None]:
        """Return when all ranks have called it.

        Returns:
            → None.
        """
        return self._issue(Kind.barrier, _NO_DATA, None, None, None, timeout, async_op)

    # ── point to point ───────────────────────────────────────────────────────────────────────────────

    def send(
        self, tensor: Any, dst: int, tag: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[None]:
        """Send a tensor to one rank.

        The Work may be done before the receive is posted for messages of up to 8 KiB, while at most 64 KiB
        are under way so; a larger message waits for its receive.

        Args:
            tensor: any shape; read.
            dst: group rank of the receiver.
            tag: 0 to 2³¹ - 1; messages are matched by source and tag, in order.

        Returns:
            → None.
        """
        peer = check.peer_rank(dst, self.rank, self.size, "dst")
        number = check.message_tag(tag)
        source = check.readable(tensor, "tensor")
        return self._issue(Kind.send, source, source, None, None, timeout, async_op, peer=peer, tag=number)

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
        return self._issue(
            Kind.recv,
            target,
            None,
            target,
            None,
            timeout,
            async_op,
            peer=peer,
            tag=number,
            senders=range(self.size),
        )

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def new_group(
        self, ranks: Sequence[int] | None = None, *, timeout: Timeout = None, name: str = ""
    ) -> Awaitable[ProcessGroup | None]:
        """Make a group of some of this group's ranks. All members of this group call it, in the same order.

        It takes its number in the call, like every collective, and returns when all have called.

        Args:
            ranks: group ranks of the members, in any order; None means all. They are sorted.
            timeout: of the call, and the new group's default; None takes this group's.
            name: for people.

        Returns:
            An awaitable of the new group; of None on ranks that are no members.
        """
        chosen = check.members(ranks, self.size)
        limit = self.timeout if timeout is None else seconds(timeout)
        work = self._issue(
            Kind.new_group, _NO_DATA, None, None, None, limit, True, detail=f"ranks {list(chosen)}"
        )
        number = self._children
        self._children += 1
        return self._make_child(work, number, chosen, limit, name)

    async def _make_child(
        self, work: Work[None], number: int, chosen: tuple[int, ...], timeout: float, name: str
    ) -> ProcessGroup | None:
        await work
        if self.rank not in chosen:
            return None
        ranks = [self.ranks[member] for member in chosen]
        return ProcessGroup(
            ranks=ranks,
            name=name or f"{self.name}.{number}",
            context=context_of(self.context, number, ranks),
            epoch=self.epoch,
            hosts=[self.hosts[member] for member in chosen],
            timeout=timeout,
            control=self._control,
            make_backend=self._backend.subgroup,
            pulse=self._pulse,
            family=self._family,
        )
