"""The process group: what users hold."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Backend, Operation, Reports
from aiodist.control.plane import ControlPlane
from aiodist.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    GroupClosed,
    UsageError,
)
from aiodist.group import arguments as check
from aiodist.group.flight import Flight
from aiodist.group.watch import Watch
from aiodist.types import NO_ROOT, Call, Kind, ReduceOp, Timeout, check_reduction, seconds
from aiodist.work import Pulse, Work

_alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
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


class ProcessGroup:
    """A fixed set of processes that communicate. Made by `init_process_group` and `new_group`.

    Every operation is a plain method that starts it at once and returns a `Work`; `await` gives the
    result. Members issue the same collectives in the same order (law 1). Tensors are borrowed until the
    Work is done (law 6): NumPy arrays and whatever shares memory with one. Ranks are group ranks.

    All operations take
        timeout: seconds, or a timedelta; None takes the group's. When it passes, the group breaks.
        async_op: False says "I await it here": a Work dropped un-awaited warns. True says "I hold the handle".
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

    def __init__(
        self,
        *,
        ranks: Sequence[int],
        name: str,
        context: int,
        epoch: int,
        hosts: Sequence[str],
        timeout: float,
        control: ControlPlane,
        make_backend: Callable[[int, Sequence[int], Reports], Backend],
        pulse: Pulse,
        closer: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(control.rank)
        self.size = len(self.ranks)
        self.name = name
        self.context = context
        self.epoch = epoch
        self.hosts = tuple(hosts)
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._pulse = pulse
        self._control = control
        self._closer = closer
        self._issued = 0
        self._messages: dict[tuple[Kind, int, int], int] = {}  # issued, by kind, peer and tag
        self._children = 0
        self._error: GroupBroken | None = None
        self._failed = False  # the Works have failed: nothing touches their buffers
        self._late: list[Work[Any]] = []  # issued between the break and that moment
        self._closing: asyncio.Future[None] | None = None
        self._forked = False
        self._flight = Flight(self._loop, self._stalled, self._expired)
        self._backend = make_backend(context, self.ranks, self)
        self._watch = Watch(self, control, self._loop)
        self._watch.start()
        _alive.add(self)

    @property
    def backend(self) -> str:
        """The backend's name, 'host'."""
        return self._backend.name

    def __repr__(self) -> str:
        state = "closed" if self._closing else "broken" if self._error else "open"
        return f"<ProcessGroup '{self.name}' rank {self.rank} of {self.size}, {self.backend}, {state}>"

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
        return self._issue(
            Kind.send, source, source, None, None, timeout, async_op, peer=peer, tag=number
        )

    def recv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Timeout = None, async_op: bool = False
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
            Kind.recv, target, None, target, None, timeout, async_op, peer=peer, tag=number, senders=range(self.size)
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
        )

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self) -> None:
        """Return when nothing that was issued here is in flight any more. Raises nothing: ask the Works."""
        await self._flight.drain()

    def abort(self, reason: str = "abort() was called") -> None:
        """Break the group at once, on every member: all that is in flight fails with `GroupAborted`.

        Args:
            reason: one line; the others read it.
        """
        self._check_here()
        self.break_(GroupAborted(self.ranks[self.rank], reason))

    async def aclose(self) -> None:
        """Close the group: wait for what is in flight here, say goodbye. Not collective; may be repeated.

        Closing the world closes the connections, too, and every other group of this process with them.
        """
        self._check_here(closed_is_wrong=False)
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self._loop.create_future()
        try:
            try:
                await self._flight.drain()
            except asyncio.CancelledError:
                self.break_(GroupAborted(self.ranks[self.rank], "closing the group was cancelled"))
                raise
            finally:
                await self._end()
        finally:
            self._closing.set_result(None)

    async def __aenter__(self) -> ProcessGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._closing is None:
            words = str(error)
            self.abort(f"{type(error).__name__}: {words}" if words else type(error).__name__)
        await self.aclose()

    async def _end(self) -> None:
        if self._error is None:
            self._watch.leave(self._issued)
        self._flight.close()
        self._watch.close()
        self._backend.retire()
        if self._closer is not None:
            await self._closer()

    # ── issuing ──────────────────────────────────────────────────────────────────────────────────────

    def _issue(
        self,
        kind: Kind,
        agreed: Array | tuple[np.dtype[Any], tuple[int, ...]],
        source: Array | list[Array] | None,
        target: Array | list[Array] | None,
        result: Any,
        timeout: Timeout,
        async_op: bool,
        *,
        reduce: ReduceOp | None = None,
        root: int = NO_ROOT,
        peer: int = -1,
        tag: int = 0,
        senders: Sequence[int] = (),
        detail: str = "",
    ) -> Work[Any]:
        """Take the number and start. Everything is checked before; nothing here can fail half-way."""
        self._check_here()
        limit = self.timeout if timeout is None else seconds(timeout)
        dtype, shape = agreed if isinstance(agreed, tuple) else (agreed.dtype, agreed.shape)
        if kind is Kind.send or kind is Kind.recv:
            stream = (kind, peer, tag)
            number = self._messages.get(stream, 0)
            self._messages[stream] = number + 1
            call = Call(kind, number, dtype, shape, None, peer)
        else:
            call = Call(kind, self._issued, dtype, shape, reduce, root, 0, detail)
            self._issued += 1
        work: Work[Any] = Work(self, call, self._loop, self._pulse, async_op)
        if self._error is not None:
            self._refuse(work)
            return work
        operation = Operation(call, work, source, target, result, self._flight.ended, peer, tag, senders)
        self._flight.issue(operation, limit)
        self._backend.submit(operation)
        if kind is not Kind.send and kind is not Kind.recv and not work.done():
            gone = self._watch.gone(call.seq)
            if gone is not None:
                self.break_(gone, tell=False)
        return work

    def _refuse(self, work: Work[Any]) -> None:
        assert self._error is not None
        if self._failed:
            work._fail(self._error)
        else:  # the Works before it have not failed yet, and order is kept
            self._late.append(work)

    def _check_here(self, closed_is_wrong: bool = True) -> None:
        if self._forked:
            raise GroupClosed(
                f"group '{self.name}' belongs to the parent of this forked process",
                hint="Call init_process_group in the child",
            )
        if asyncio._get_running_loop() is not self._loop:
            raise UsageError(
                f"group '{self.name}' belongs to another event loop or thread",
                hint="Call it on the loop that made it; synchronous code and other threads use aiodist.portal",
            )
        if closed_is_wrong and self._closing is not None:
            raise GroupClosed(f"group '{self.name}' is closed")

    # ── the end of the group ─────────────────────────────────────────────────────────────────────────

    def break_(self, error: GroupBroken, *, tell: bool = True) -> None:
        """The group is broken. Idempotent: the first cause stays.

        Args:
            error: why.
            tell: whether the other members have to be told.
        """
        if self._error is not None:
            return
        self._error = error
        self._watch.rest()
        if tell:
            self._watch.tell_broken(error)
        self._backend.abort(self._fail_all)

    def _fail_all(self) -> None:
        assert self._error is not None
        self._failed = True
        self._flight.fail_all(self._error)
        for work in self._late:
            work._fail(self._error)
        self._late = []

    def _stalled(self, operation: Operation) -> None:
        if operation.call.kind not in (Kind.send, Kind.recv):
            self._watch.ask(operation.call.seq)

    def _expired(self, operation: Operation, timeout: float) -> None:
        call = operation.call
        if call.kind in (Kind.send, Kind.recv):
            missing = () if operation.peer < 0 else (self.ranks[operation.peer],)
        else:
            missing = self._watch.absent.get(call.seq, ())
        self.break_(CollectiveTimeout(timeout, missing))

    # ── what the watch asks ──────────────────────────────────────────────────────────────────────────

    def issued(self, seq: int) -> Call | None:
        """The collective that this rank issued under a number; None if it has not, or long ago."""
        return self._flight.call(seq)

    def issued_count(self) -> int:
        """How many collectives this rank has issued."""
        return self._issued

    def collectives_in_flight(self) -> list[int]:
        """Numbers of the collectives that have not ended here."""
        return self._flight.collectives()

    # ── what the backend reports ─────────────────────────────────────────────────────────────────────

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """A member's signature of a collective differs."""
        self._watch.suspect(seq, self.ranks[peer], theirs)

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Both sides of a message disagree."""
        self.break_(CollectiveMismatch({self.ranks[rank]: words for rank, words in said.items()}))

    def broken(self, error: GroupBroken) -> None:
        """The backend can do no more work."""
        self.break_(error)

    def lost(self, rank: int, cause: str) -> None:
        """A member is gone."""
        self._control.lose(self.ranks[rank], cause)


def _after_fork() -> None:
    for group in list(_alive):
        group._forked = True


os.register_at_fork(after_in_child=_after_fork)
