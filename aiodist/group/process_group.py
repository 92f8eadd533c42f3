"""The process group that users hold. It documents its calls and hands them to its parts.

Names without an underscore are for users. What the package needs beside them is behind `_core` (`GroupCore`):
numbers, submits, life, and how the group ends. `epochs` takes it from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Never, Self, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

from aiodist.backends.base import Array
from aiodist.backends.work import Work
from aiodist.base.timeouts import Timeout
from aiodist.base.types import NO_ROOT, Kind, ReduceOp
from aiodist.group import arguments as check
from aiodist.group.batch import Batch
from aiodist.group.calls import Calls, by_position
from aiodist.group.changes import Changes
from aiodist.group.core import GroupCore
from aiodist.group.entering import Entering
from aiodist.group.feedback import ErrorFeedback
from aiodist.group.objects import Objects
from aiodist.group.quantized import Quantized, codec_named
from aiodist.group.requests import Op, exchange, receiving, request, sending
from aiodist.group.services.stream import Stream
from aiodist.group.subgroups import Subgroups
from aiodist.group.together import together

# In Python 3.11 a member of an enum takes 0.1 µs wherever it is named.
_ALL_REDUCE, _BROADCAST, _REDUCE, _BARRIER = Kind.all_reduce, Kind.broadcast, Kind.reduce, Kind.barrier
_ALL_GATHER, _GATHER, _SCATTER = Kind.all_gather, Kind.gather, Kind.scatter
_REDUCE_SCATTER, _ALL_TO_ALL = Kind.reduce_scatter, Kind.all_to_all

T = TypeVar("T")
Number = complex | np.number[Any] | np.bool_
"""Numbers, Python's and NumPy's; `complex` says int and float, too."""

F = TypeVar("F", bound=Callable[..., Any])


def _alone(sender: int, obj: Any) -> Any:
    return obj


def _with_sender(sender: int, obj: Any) -> tuple[int, Any]:
    return sender, obj


class ProcessGroup:
    """A fixed set of processes that communicate. Made by `init_process_group` and `new_group`.

    A group other than the world that is dropped without `aclose` is closed when its last operation here has
    ended; closing the world warns of it, by the line that made it.

    Every operation is a plain method that starts it at once and returns a `Work`; `await` gives the
    result. Members issue the same collectives in the same order. Tensors are borrowed until the Work is done:
    do not write to them before. They are NumPy arrays, and objects that share memory with one. Ranks are
    group ranks.

    All operations take

    - timeout: seconds, or a timedelta; None takes the group's. When it passes, the group breaks.
    - async_op: False says "I await it here": a Work dropped un-awaited is an error at the group's end. True:
      "I hold the handle".

    and raise

    - UsageError: at the call, before anything is sent. The group is as before.
    - GroupClosed: at the call, after `aclose`.
    - GroupBroken: from the Work: `PeerLost`, `CollectiveTimeout`, `CollectiveMismatch`, `GroupAborted`. The
      group does no more work; tensors of failed in-place operations are undefined.

    Attributes:
        rank: of this process in the group.
        size: number of members.
        ranks: the members' global ranks, in group order.
        name: for people.
        epoch: counts membership changes, 0 at first.
        hosts: name of each member's host, in group order.
        local_rank: of this process among the members on its node.
        local_size: members on its node.
        node_rank: of its node among the members' nodes.
        node_count: nodes that the members are on. Ranks that share a host are of one node; where a launcher
            numbers nodes and local ranks, these have its order.
        timeout: seconds; of operations without a timeout of their own.
        backend: what carries operations out, 'host' or 'cpu:host,cuda:nccl'.
        device: index of this process's CUDA device; None where the group takes no tensors on devices.
    """

    def __init__(self, core: GroupCore) -> None:
        self._roster = roster = core.roster
        self.rank = roster.rank
        self.size = roster.size
        self.ranks = roster.ranks
        self.name = roster.name
        self.epoch = roster.epoch
        self.hosts = roster.hosts
        self.local_rank, self.local_size, self.node_rank, self.node_count = roster.place
        self._core = core
        self._objects = Objects(core)
        self._subgroups = Subgroups(core)
        self._changes = Changes(core)
        self._calls = Calls(core)
        self._quantized = Quantized(core)
        core.start(self)

    @property
    def timeout(self) -> float:
        """The timeout, in seconds, of operations without a timeout of their own."""
        return self._core.timeout

    @timeout.setter
    def timeout(self, limit: float) -> None:
        self._core.timeout = limit

    @property
    def backend(self) -> str:
        """The backend's name, 'host'."""
        return self._core.carriers.name

    @property
    def device(self) -> int | None:
        """Index of this process's CUDA device; None where the group takes no tensors on devices."""
        return self._core.carriers.device

    def __repr__(self) -> str:
        what = f"rank {self.rank} of {self.size}, {self.backend}, {self._core.state}"
        return f"<ProcessGroup '{self.name}' {what}>"

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────

    def all_reduce(
        self,
        tensor: T,
        op: Op = ReduceOp.SUM,
        out: T | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[T]:
        """Reduce over all ranks; every rank gets the bitwise same result.

        Args:
            tensor: any shape, equal on all ranks. Overwritten with the result unless `out` is given.
            op: how elements combine.
            out: where the result goes instead; same shape and dtype. The input then survives a failure.

        Returns:
            → `tensor`, or `out`.
        """
        started = self._core.start_prepared(_ALL_REDUCE, tensor, out, async_op, op, NO_ROOT, timeout)
        return started or self._issue(_ALL_REDUCE, tensor, out, timeout, async_op, op)

    def all_reduce_quantized(
        self,
        tensor: T,
        op: Op = ReduceOp.SUM,
        codec: str = "int8",
        out: T | None = None,
        *,
        feedback: ErrorFeedback | None = None,
        non_finite: str = "raise",
        agree_on: str = "",
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[T]:
        """Reduce over all ranks with 8 or 4 bits an element on the way. Every rank gets the same bits.

        Each block of elements has one scale. Sums are float32. Each element is rounded twice, by half a scale
        at most each time, however many ranks there are.

        Args:
            tensor: float16, bfloat16, float32 or float64 on the host; otherwise as of `all_reduce`.
            op: SUM or AVG.
            codec: 'int8' (blocks of 1024 elements), 'int4' (of 128), or with a block of your own: 'int8/256'.
                Ranks must agree on it.
            out: where the result goes instead.
            feedback: keeps what rounding leaves out of this tensor, and adds it the next time.
            non_finite: 'raise': `NonFiniteValues` on all ranks where a value is infinite or NaN, and nothing
                has changed; 'keep': the result has NaN in the whole block.
            agree_on: text that must be the same on all ranks: a plan of buckets, say.

        Returns:
            → `tensor`, or `out`. They are written only when all went well.
        """
        chosen, keep = codec_named(codec), check.one_of(non_finite, ("raise", "keep"), "non_finite") == "keep"
        agreed = check.text(agree_on, "agree_on")
        return self._quantized.all_reduce(
            tensor, op, chosen, out, ErrorFeedback.checked(feedback), keep, agreed, timeout, async_op
        )

    def broadcast(
        self, tensor: T, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[T]:
        """Copy `src`'s tensor to all ranks.

        Args:
            tensor: same shape and dtype on all ranks; read on `src`, overwritten elsewhere.
            src: group rank that has the data.

        Returns:
            → `tensor`.
        """
        started = self._core.start_prepared(_BROADCAST, tensor, None, async_op, 0, src, timeout)
        return started or self._issue(_BROADCAST, tensor, None, timeout, async_op, root=src)

    def reduce(
        self,
        tensor: T,
        dst: int = 0,
        op: Op = ReduceOp.SUM,
        out: T | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[T | None]:
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
        started = self._core.start_prepared(_REDUCE, tensor, out, async_op, op, dst, timeout)
        return started or self._issue(_REDUCE, tensor, out, timeout, async_op, op, dst)

    @overload
    def all_gather(
        self,
        tensor: Number,
        out: Any = ...,
        sizes: Sequence[int] | None = ...,
        *,
        timeout: Timeout = ...,
        async_op: bool = ...,
    ) -> Work[Any]: ...
    @overload
    def all_gather(
        self,
        tensor: T,
        out: T | None = ...,
        sizes: Sequence[int] | None = ...,
        *,
        timeout: Timeout = ...,
        async_op: bool = ...,
    ) -> Work[T]: ...
    def all_gather(
        self,
        tensor: Any,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Give every rank's tensor to every rank.

        Args:
            tensor: same shape and dtype on all ranks; read. With `sizes`, same dtype and trailing shape.
            out: array of shape `(size, *tensor.shape)` for the result, or with the tensors joined along the
                first axis; a new one by default.
            sizes: rows of each rank's tensor, where they differ; the same list on all ranks.

        Returns:
            → array of shape `(size, *tensor.shape)`; row r is rank r's tensor. With `sizes`, all ranks' rows
            one after the other: `(sum(sizes), *tensor.shape[1:])`.
        """
        if sizes is None:
            started = self._core.start_prepared(_ALL_GATHER, tensor, out, async_op, 0, NO_ROOT, timeout)
            if started is not None:
                return started
        return self._issue(_ALL_GATHER, tensor, out, timeout, async_op, sizes=sizes)

    def reduce_scatter(
        self,
        tensor: T,
        out: T | None = None,
        op: Op = ReduceOp.SUM,
        sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[T]:
        """Reduce over all ranks, and give rank r the r-th part of the first axis.

        Args:
            tensor: same shape and dtype on all ranks; the first axis is divisible by `size`. Read.
            out: array of shape `(tensor.shape[0] // size, *tensor.shape[1:])`; a new one by default.
            op: how elements combine.
            sizes: rows of each rank's part, where they differ; the same list on all ranks. The first axis of
                `tensor` has as many rows as all of them, and `out` those of this rank.

        Returns:
            → this rank's part of the reduction.
        """
        if sizes is None:
            started = self._core.start_prepared(_REDUCE_SCATTER, tensor, out, async_op, op, NO_ROOT, timeout)
            if started is not None:
                return started
        return self._issue(_REDUCE_SCATTER, tensor, out, timeout, async_op, op, sizes=sizes)

    @overload
    def gather(
        self, tensor: Number, dst: int = ..., out: Any = ..., *, timeout: Timeout = ..., async_op: bool = ...
    ) -> Work[Any]: ...
    @overload
    def gather(
        self, tensor: T, dst: int = ..., out: T | None = ..., *, timeout: Timeout = ..., async_op: bool = ...
    ) -> Work[T | None]: ...
    def gather(
        self, tensor: Any, dst: int = 0, out: Any = None, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Give every rank's tensor to one rank.

        Args:
            tensor: same shape and dtype on all ranks; read.
            dst: group rank that gets them.
            out: on `dst`, array of shape `(size, *tensor.shape)` for the result, or with the tensors joined
                along the first axis; a new one by default.

        Returns:
            → on `dst`, array of shape `(size, *tensor.shape)`; None elsewhere.
        """
        started = self._core.start_prepared(_GATHER, tensor, out, async_op, 0, dst, timeout)
        return started or self._issue(_GATHER, tensor, out, timeout, async_op, root=dst)

    def scatter(
        self, out: T, tensor: Any = None, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[T]:
        """Distribute one rank's rows over all ranks.

        Args:
            out: this rank's part; same shape and dtype on all ranks; overwritten.
            tensor: on `src`, array of shape `(size, *out.shape)`, or with the parts joined along the first
                axis; part r goes to rank r. None elsewhere.
            src: group rank that has the data.

        Returns:
            → `out`.
        """
        started = self._core.start_prepared(_SCATTER, out, tensor, async_op, 0, src, timeout)
        return started or self._issue(_SCATTER, tensor, out, timeout, async_op, root=src)

    def all_to_all(
        self,
        tensor: T,
        out: T | None = None,
        in_splits: Sequence[int] | None = None,
        out_splits: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[T]:
        """Send a part of the first axis from every rank to every rank.

        Args:
            tensor: read. Same dtype and trailing shape on all ranks.
            out: array for the result; a new one by default, of the size that `out_splits` says, or of the
                input's shape where there are no splits.
            in_splits: rows that go to each rank; None: equal parts.
            out_splits: rows that come from each rank; None: equal parts of `out`. What one rank sends and
                the other expects is compared for each pair. All ranks pass splits, or none does.

        Returns:
            → array of the parts that came, in rank order.
        """
        if in_splits is None and out_splits is None:
            started = self._core.start_prepared(_ALL_TO_ALL, tensor, out, async_op, 0, NO_ROOT, timeout)
            if started is not None:
                return started
        asked = exchange(self._roster, tensor, out, in_splits, out_splits)
        return self._core.issue(asked, timeout, async_op)

    def barrier(self, *, timeout: Timeout = None, async_op: bool = False) -> Work[None]:
        """Return when all ranks have called it.

        Returns:
            → None.
        """
        started = self._core.start_prepared(_BARRIER, None, None, async_op, 0, NO_ROOT, timeout)
        return started or self._core.issue(request(_BARRIER, self._roster), timeout, async_op)

    def monitored_barrier(
        self, timeout: Timeout = None, wait_all_ranks: bool = False, *, async_op: bool = False
    ) -> Work[None]:
        """Return when all ranks have called it: torch's barrier for debugging. It names the missing ranks.

        Args:
            timeout: seconds until `CollectiveTimeout` names the ranks that did not come.
            wait_all_ranks: accepted for torch's sake: all missing ranks are named in any case.

        Returns:
            → None.
        """
        return self.barrier(timeout=timeout, async_op=async_op)

    def _issue(
        self,
        kind: Kind,
        tensor: Any,
        out: Any,
        timeout: Timeout,
        async_op: bool,
        op: Op | None = None,
        root: Any = NO_ROOT,
        sizes: Sequence[int] | None = None,
    ) -> Work[Any]:
        """Check a collective that is not prepared, and issue it."""
        asked = request(kind, self._roster, tensor, out, root=root, op=op, sizes=sizes)
        return self._core.issue(asked, timeout, async_op)

    # ── messages between two ranks ───────────────────────────────────────────────────────────────────

    def send(
        self, tensor: Any, dst: int, tag: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[None]:
        """Send a tensor to one rank.

        The Work of a message of up to 8 KiB may be done before the receive is posted, while at most 64 KiB of
        such messages are under way; a larger message waits for its receive. The first message from one rank
        to another waits until the event loop there is free, because the two have to connect. A
        message to oneself is like any other: a small one is copied at once, a larger one waits for its
        receive.

        Args:
            tensor: any shape; read.
            dst: group rank of the receiver; this one's, too.
            tag: 0 to 2³¹ - 2; messages are matched by source and tag, in order.

        Raises:
            PeerClosed: from the Work: the receiver has closed its group, and does not receive the message.

        Returns:
            → None.
        """
        core = self._core
        messenger = core.messenger_for_send(timeout)
        sent = None if messenger is None else messenger.send(tensor, dst, tag, async_op)
        if sent is not None:
            return sent
        return core.issue(sending(self._roster, tensor, dst, tag), timeout, async_op)

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

        The receive waits as long as the sender takes, unless `timeout` is given. Without `async_op=True` it
        is taken back if its one await ends without the result: it no longer touches the tensor, and the
        message goes to the next receive. (A receive of a tensor on a device, or that MPI, NCCL or another
        engine carries out, goes on.)

        Args:
            tensor: of the message's dtype and number of elements; overwritten.
            src: group rank of the sender; None takes the first message with this tag from anybody, this rank
                itself included.
            tag: of the message.

        Returns:
            → the group rank of the sender.
        """
        core = self._core
        messenger = core.messenger_for_receive(timeout)
        posted = None if messenger is None else messenger.recv(tensor, src, tag, async_op)
        if posted is not None:
            return posted
        return core.issue(receiving(self._roster, tensor, src, tag), timeout, async_op)

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────

    def all_gather_object(
        self, obj: Any, *, allow_pickle: bool = False, timeout: Timeout = None, async_op: bool = False
    ) -> Work[list[Any]]:
        """Give every rank's object to every rank.

        Args:
            obj: this rank's; encoded in the call, so it may be changed at once. Of any size.
            allow_pickle: what msgpack cannot carry travels as pickle; the receiving ranks must allow it, too.

        Raises:
            UsageError: at the call: it cannot be carried; from the Work: a pickle, not allowed here.

        Returns:
            → list of `size` objects, in rank order.
        """
        return self._objects.all_gather(obj, allow_pickle, timeout, async_op)

    def gather_object(
        self,
        obj: Any,
        dst: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[list[Any] | None]:
        """Give every rank's object to one rank. Arguments and errors as in `all_gather_object`.

        Returns:
            → on `dst`, list of `size` objects, in rank order; None elsewhere.
        """
        return self._objects.gather(obj, dst, allow_pickle, timeout, async_op)

    def broadcast_object(
        self,
        obj: Any = None,
        src: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Give `src`'s object to every rank. On other ranks `obj` is ignored.

        Returns:
            → the object; on `src`, `obj` itself.
        """
        return self._objects.broadcast(obj, src, allow_pickle, timeout, async_op)

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Distribute one rank's list of objects over all ranks. On other ranks `objs` is ignored.

        Args:
            objs: on `src`, `size` objects; the r-th goes to rank r.

        Returns:
            → this rank's object.
        """
        return self._objects.scatter(objs, src, allow_pickle, timeout, async_op)

    def send_object(
        self,
        obj: Any,
        dst: int,
        tag: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[None]:
        """Send an object to one rank. Tags of objects and of tensors are apart.

        Raises:
            PeerClosed: from the Work: the receiver has closed its group, and does not receive the message.

        Returns:
            → None.
        """
        return self._objects.send(obj, dst, tag, allow_pickle, timeout, async_op)

    def recv_object(
        self,
        src: int | None = None,
        tag: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Receive an object from one rank, or from anybody where `src` is None.

        The receive waits as long as the sender takes, unless `timeout` is given. Without `async_op=True` it
        is taken back if its one await ends without the result, and the message goes to the next receive. So
        `asyncio.wait_for(pg.recv_object(0), 0.2)` in a loop loses no message.

        Raises:
            PeerClosed: from the Work: that rank has closed its group (if `src` is None: all have). This is
                known at once, or 3 s later if no message came from that rank, or if it goes on in other
                groups.
            GroupClosed: from the Work: the group was closed here meanwhile.

        Returns:
            → the object.
        """
        return self._objects.receive(src, tag, allow_pickle, timeout, async_op, _alone)

    def recv_object_from(
        self,
        src: int | None = None,
        tag: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[tuple[int, Any]]:
        """Receive an object as `recv_object` does, and say who sent it.

        Returns:
            → the sender's group rank, and the object.
        """
        return self._objects.receive(src, tag, allow_pickle, timeout, async_op, _with_sender)

    # ── services: calls between two processes ────────────────────────────────────────────────────────

    @overload
    def handler(self, function: F, *, name: str | None = None, limit: int | None = None) -> F: ...
    @overload
    def handler(self, *, name: str | None = None, limit: int | None = None) -> Callable[[F], F]: ...
    def handler(self, function: Any = None, *, name: str | None = None, limit: int | None = None) -> Any:
        """Let other ranks call a function here: a decorator, bare or with arguments, or a plain call.

            @pg.handler
            async def lookup(key): ...

            @pg.handler(name="scan", limit=4)
            async def scan_all(prefix): yield ...

        Handlers belong to the process and outlive `rebuild`. A new handler replaces one of the same name. A
        call waits up to a second for a handler that is not registered yet.

        Args:
            function: plain, async, or an async generator function, whose parts `stream` gives. A plain
                function runs on the event loop, so it should be quick.
            name: by which it is called; its own by default.
            limit: calls of it that run at once in this process, 256 by default; the next ones wait. A plain
                function runs within one turn of the loop, alone, unless it returns something to await.

        Returns:
            The function.

        Raises:
            UsageError: others cannot call it.
        """
        return self._calls.handler(function, name, limit)

    @overload
    async def call(
        self, rank: int, handler: Callable[..., Awaitable[T]], *args: Any, timeout: Timeout = ...
    ) -> T: ...
    @overload
    async def call(self, rank: int, handler: Callable[..., T], *args: Any, timeout: Timeout = ...) -> T: ...
    @overload
    async def call(self, rank: int, handler: str, *args: Any, timeout: Timeout = ...) -> Any: ...
    async def call(self, rank: int, handler: Any, *args: Any, timeout: Timeout = None, **named: Never) -> Any:
        """Call a handler of one rank → its result. Nothing collective: only these two processes take part.

        The call goes to the process that has the rank in this group, also while the group is rebuilt, and
        when another rank has died. It runs at most once. Up to 256 calls, and 128 MiB of arguments, are
        under way to one process; the next ones wait. Cancelling stops the handler, and so does the timeout.

        Args:
            rank: group rank; this one's, too.
            handler: its name, or its function, of which only the name travels.
            args: as in `all_gather_object`, and dataclasses: they travel as dictionaries of their fields,
                and become one again where the handler's annotation names the class. 128 MiB at most.
            timeout: seconds until the answer; None takes the group's.
            named: nothing; the handler's arguments go by position.

        Returns:
            → what the handler returned. Where `handler` is a function whose annotation names a dataclass,
            that is built.

        Raises:
            CallNotRun: it has not run, and never will: no such handler, or the rank is lost; `CallTooLate`, a
                TimeoutError: its time was over before it began.
            CallUnknown: it was sent, and nobody knows whether it ran; `CallTimeout`, a TimeoutError: in time.
            RemoteError: the handler raised.
            UsageError: the arguments cannot be sent; nothing was.
            GroupClosed: this process has left the job.
        """
        if named:
            raise by_position(named)
        return await self._calls.call(rank, handler, args, timeout)

    @overload
    def stream(
        self, rank: int, handler: Callable[..., AsyncIterator[T]], *args: Any, timeout: Timeout = ...
    ) -> Stream[T]: ...
    @overload
    def stream(self, rank: int, handler: str, *args: Any, timeout: Timeout = ...) -> Stream[Any]: ...
    def stream(
        self, rank: int, handler: Any, *args: Any, timeout: Timeout = None, **named: Never
    ) -> Stream[Any]:
        """Call a handler of one rank that yields: `async for part in pg.stream(rank, "scan", prefix)`.

        About a MiB of parts is sent ahead; then the handler waits. Leaving the stream's block stops the
        handler, and so does dropping the stream. Cancelling an `anext` loses no part.

        Args:
            rank, handler, args, named: as in `call`.
            timeout: seconds until the next part, each time; None takes the group's.

        Returns:
            An async iterator, also an async context manager. The call is made when it is first asked for a
            part; that raises as `call`.
        """
        if named:
            raise by_position(named)
        return self._calls.stream(rank, handler, args, timeout)

    async def send_message(self, rank: int, message: Any, *, timeout: Timeout = None) -> None:
        """Put a message into the mailbox of one rank, from which `messages` takes it.

        The call returns when the message is in the mailbox. If the mailbox is full (1024 messages, 64 MiB),
        senders wait. Messages of one process arrive in the order in which it began to send them.

        Args:
            rank: group rank; this one's, too.
            message: as the arguments of `call`.
            timeout: seconds; None takes the group's.

        Raises:
            CallNotRun: the message is not there; `CallTooLate`, a TimeoutError: the mailbox was full.
            CallUnknown: nobody knows whether it is; `CallTimeout`, a TimeoutError: in time.
        """
        await self._calls.send_message(rank, message, timeout)

    def messages(self) -> AsyncIterator[tuple[int | None, Any]]:
        """The messages that other ranks send: `async for sender, message in pg.messages()`.

        The mailbox belongs to the process and outlives `rebuild`. Any number of tasks may take messages; each
        message goes to one of them. Cancelling a task loses no message. The iterator ends when this process
        leaves the job.

        Raises:
            UnreadableMessage: from the iteration, in the place of a message that cannot be read here; it says
                whose it was. The next `anext` gives the message behind it.

        Returns:
            An async iterator of (sender, message); the sender's rank in this group, None where it is no
            member of it.
        """
        return self._calls.messages()

    def together(self, steps: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run steps to their end, even if the task that awaits them is cancelled meanwhile.

            total = await pg.together(both(pg, a, b))   # two collectives; the others count on both

        If a handler were cancelled between two collectives (for example because its caller left), its peers
        would wait for the second. Here the task is cancelled only when the steps have ended. Each step is
        bounded by its own timeout.

        Args:
            steps: a coroutine.

        Returns:
            → what the steps return. Where they raise after the cancellation, that is its cause.
        """
        return together(steps)

    # ── batches, memory ──────────────────────────────────────────────────────────────────────────────

    def coalesce(self) -> Batch:
        """Hold back what this task issues on the group, and start it as one batch.

            async with pg.coalesce():
                for tensor in tensors:
                    pg.all_reduce(tensor)

        The operations of the task that enters the block get their place in the order in the call, as always.
        They start when the block is left, also by an exception, because peers wait for them. Leaving waits
        for operations with `async_op=False`. Awaiting a Work inside the block is a `UsageError`.

        Operations of others are not in the batch and start at once. This includes tasks, timers and callbacks
        that are created inside the block, and `new_group`, `split`, `agree` and `pending_joins`, which have
        to be awaited in it. Before such a collective starts, all operations start that were held back before
        it; closing and rebuilding do the same. Before such a message, the messages of its tag start. A block
        inside a block of the same group and task is a part of it.
        """
        self._core.check_here()
        return Batch(self._core.batches, self)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """Make an array that the other ranks of this host can read where it lies.

        Operations on it need one copy less: from 1 MiB on they are up to twice as fast. Not collective, and
        not only for this group: any group of this process may use it. Where no other rank is on this host
        it is an ordinary array.

        Args:
            shape: extents, or one extent.
            dtype: any that can be communicated.

        Returns:
            → uninitialised, contiguous NumPy array; `torch.from_numpy` shares it. Its memory is freed for
            other such arrays when the last view of it is gone; it never goes back to the system before the
            process ends.

        Raises:
            UsageError: no room is left in the memory that this process shares, 64 GiB of address space or,
                under a limit of it (`ulimit -v`), a 64th part of that. Operations go on all the same.
        """
        self._core.check_here()
        extents, kind = check.extents(shape, dtype)
        return self._core.host.empty(extents, kind)

    # ── groups of its members ────────────────────────────────────────────────────────────────────────

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        name: str = "",
        use_local_synchronization: bool = False,
    ) -> Entering[Self | None]:
        """Make a group of some of this group's ranks. All members of this group call it, in the same order.

        The order of the calls counts, as for every collective. The call returns when all have called.

        Args:
            ranks: group ranks of the members, in any order; None means all. They are sorted.
            timeout: of the call, and the new group's default; None takes this group's.
            name: for people.
            use_local_synchronization: only the new group's members call, and wait for each other alone.

        Returns:
            What gives the new group when it is awaited or entered (`async with`); None on ranks that are no
            members.
        """
        return self._subgroups.new_group(self, ranks, timeout, name, use_local_synchronization)

    def split(
        self, color: int | None, key: int = 0, *, timeout: Timeout = None, name: str = ""
    ) -> Entering[Self | None]:
        """Divide the group: ranks that give the same color form a group. All members call it.

        Args:
            color: any non-negative integer; None joins no group.
            key: orders the ranks of a new group; equal keys keep this group's order.
            timeout: of the call, and the new groups' default; None takes this group's.
            name: for people.

        Returns:
            What gives this rank's new group when it is awaited or entered (`async with`); None where `color`
            is None.
        """
        return self._subgroups.split(self, color, key, timeout, name)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self) -> None:
        """Return when no operation of this rank is in flight any more. The Works have the errors.

        Raises:
            UsageError: a `coalesce` block of this task holds something back.
        """
        await self._core.drain()

    def issued_count(self) -> int:
        """The number of collectives that this rank has issued in the group, ended or not."""
        return self._core.numbers.issued

    def abort(self, reason: str = "abort() was called") -> None:
        """Break the group at once, on every member: all that is in flight fails with `GroupAborted`.

        Args:
            reason: one line; the others read it.
        """
        self._core.abort(reason)

    async def aclose(self) -> None:
        """Close the group: wait for what is in flight here, say goodbye. Not collective; may be repeated.

        Closing the world closes the connections, too, and every other group of this process with them. A
        group that was rebuilt closes its successor, so that one `async with` holds through all epochs.

        Raises:
            ForgottenAwait: operations were never awaited; see `Work`. Everything is closed all the same.
            GroupBroken: the group, or one closed with it, broke while operations were in flight, and nobody
                has awaited any of those that failed. Everything is closed all the same. Any other error of an
                operation that nobody awaited, likewise. After an `abort` of this process nothing is raised.
        """
        await self._core.aclose()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts as of now, on this rank. They cost operations no time.

        Returns:
            By part, then by name. A part that the group does not have is left out.

            - `operations`: `issued` (collectives that have a number), `in_flight` (operations, of any kind).
            - `local`, between ranks of one host: `plans` (calls that differ and are remembered),
              `kept_exchanges`, `running`, `waiting` (for a slot or for room), `in_thread`.
            - `segment`, of the process: `bytes` of address space, `taken_bytes`, `arrays` (of `pg.empty`,
              views counted once), `waiting` (groups, and links by which small messages come).
            - `channels`: `running` (collectives over them), `early` (numbers that peers began before us).
            - `links`, of the process: `outgoing`, of these `outgoing_shm`, `incoming`, `control`.
        """
        return self._core.statistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._core.leave(error)

    # ── who belongs to the job ───────────────────────────────────────────────────────────────────────

    def check_rebuild(self) -> None:
        """Refuse a group that `rebuild` refuses, before it is needed.

        Raises:
            UsageError: the group is no world, or its members never change.
        """
        self._changes.must_regroup()

    def rebuild(
        self, min_size: int = 1, admit: bool = True, *, timeout: Timeout = None
    ) -> Awaitable[ProcessGroup]:
        """Go on with the members that are left: the next epoch's world, without the lost, with newcomers.

        Every living member calls it, after an error or between two steps. The new group is returned when
        every member has left this epoch; then this group and its subgroups are closed. Ranks are counted
        anew, in their old order, newcomers last. A member that dies meanwhile is left out, and the user need
        not call again. Cancelling the awaiting task does not stop the change; the next such call continues
        it.

        Args:
            min_size: the least number of members of the next epoch, newcomers included.
            admit: take in newcomers that wait (`dist.join`).
            timeout: seconds to wait for members that live and have not called; then they are evicted. None
                takes the group's.

        Returns:
            → the new group, at a later epoch; also the loop's default group, if this one was.

        Raises:
            UsageError: the group is no world.
            QuorumLost: too few are left, or the arbiter cannot be reached: this process must not go on.
            Evicted: the others went on without this process.
        """
        return self._changes.rebuild(min_size, admit, timeout)

    def shrink(self, exclude: Sequence[int] = (), *, timeout: Timeout = None) -> Awaitable[ProcessGroup]:
        """Go on without some members, and without the lost. All others call it; newcomers wait on.

        Args:
            exclude: group ranks that shall leave; the same on every caller. They find this group broken by
                `Evicted`, and need not call.
            timeout: as in `rebuild`.

        Returns, Raises: as `rebuild`.
        """
        return self._changes.shrink(exclude, timeout)

    def grow(self, n: int = 1, *, timeout: Timeout = None) -> Awaitable[ProcessGroup]:
        """Wait for newcomers and go on with them. All members call it.

        Operations in flight end first. If the newcomers do not come, this group is as it was. If a member
        calls `rebuild` meanwhile, because something broke, all go on without waiting for newcomers.

        Args:
            n: how many newcomers there have to be; all that wait are admitted.
            timeout: seconds to wait for them, and for members that have not called. None takes the group's.

        Returns: as `rebuild`.

        Raises:
            RendezvousTimeout: they did not come.
            QuorumLost, Evicted: as `rebuild`.
        """
        return self._changes.grow(n, timeout)

    async def agree(self, flag: bool = True, *, timeout: Timeout = None) -> bool:
        """Whether all members say yes: the same answer on all survivors, also if members die meanwhile.

        This is a collective, in order with the others. After a death, operations may have ended well on some
        members and failed on others. Only the answer of `agree` is the same on all, so commit steps by it.

            ok = await pg.agree(ok)

        Args:
            flag: what this member says.
            timeout: seconds; None takes the group's.

        Returns:
            → True if all members said yes and all lived to say so, as far as any survivor knows; else False.

        Raises:
            CollectiveMismatch: members issued something else, in its place or before it.
            CollectiveTimeout: a member that lives does not answer how it ended there.
            QuorumLost, Evicted: this process has no say any more.
        """
        return await self._changes.agree(flag, timeout)

    async def pending_joins(self, *, timeout: Timeout = None) -> int:
        """The number of newcomers that wait to be admitted. A collective: all members get the same answer.

        Args:
            timeout: seconds; None takes the group's.

        Raises:
            RendezvousError: rank 0, which asks the store, could not.
        """
        return await self._changes.pending_joins(timeout)

    async def newcomers_here(self) -> int:
        """The number of waiting newcomers, as far as this rank knows; ranks may differ. Not collective.

        Without a round trip after the first call: cheap enough to ask at every step.
        """
        return await self._changes.newcomers_here()
