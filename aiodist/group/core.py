"""What a group is apart from its calls: numbers, life, and how it ends.

`GroupCore` takes an operation's number, hands it to the backend, and fails everything at once when the
group breaks. `ProcessGroup` adds what users call.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike

from aiodist.backends.base import Array, Backend, Operation, Reports
from aiodist.control.plane import ControlPlane
from aiodist.errors import (
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    GroupClosed,
    UsageError,
)
from aiodist.group import arguments as check
from aiodist.group.batch import Batch, Batches
from aiodist.group.flight import Flight
from aiodist.group.places import HOST_PLACE, place_of
from aiodist.group.reports import GroupReports
from aiodist.group.requests import Caller, Request
from aiodist.group.watch import Watch
from aiodist.roles import ROLES
from aiodist.timeouts import Timeout, seconds
from aiodist.types import Call, Kind
from aiodist.work import Failures, Pulse, Work

if TYPE_CHECKING:
    from aiodist.group.epochs.regroup import Regroup

_alive: weakref.WeakSet[GroupCore] = weakref.WeakSet()


class GroupCore:
    """The numbering, life and end of one group on one rank. See `ProcessGroup` for its attributes."""

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
        family: weakref.WeakSet[GroupCore] | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(control.rank)
        self.size = len(self.ranks)
        self._here = Caller(self.rank, self.size)
        self.name = name
        self.context = context
        self.epoch = epoch
        self.hosts = tuple(hosts)
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._pulse = pulse
        self._control = control
        self._closer = closer  # the world's alone
        self._regroup: Regroup | None = None  # likewise; it enters itself where membership can change
        self._successor: GroupCore | None = None  # the latest epoch's; whoever closes this one closes it
        self._predecessors: weakref.WeakSet[GroupCore] = weakref.WeakSet()  # of which this is the successor
        self._family: weakref.WeakSet[GroupCore] = weakref.WeakSet() if family is None else family
        self._issued = 0
        self._unbegun: set[int] = set()  # numbers that were taken, of collectives that begin later
        self._messages: dict[tuple[Kind, int, int, str], int] = {}  # issued, by kind, peer, tag and place
        self._children = 0
        self._local_children: dict[tuple[int, ...], int] = {}
        self._composed_tasks: set[asyncio.Task[None]] = set()
        self._error: GroupBroken | None = None
        self._failed = False  # the Works have failed: nothing touches their buffers
        self._failures = Failures()
        self._late: list[Work[Any]] = []  # issued between the break and that moment
        self._closing: asyncio.Future[None] | None = None
        self._opening: set[asyncio.Task[Any]] = set()  # ended by a break
        self._forked = False
        self._flight = Flight(self._loop, self._stalled, self._expired)
        self._watch = Watch(self, self._flight, self._break, control, self._loop)
        self._backend = make_backend(
            context, self.ranks, GroupReports(self.ranks, self._watch.suspect, self._break)
        )
        self._batches = Batches(self._backend, self._unbegun)
        self._short = self._flight.short = self._backend.short_way(self, self._note)
        self._watch.start()
        self._family.add(self)  # from here on others abort and close it, too
        _alive.add(self)

    @property
    def backend(self) -> str:
        """The backend's name, 'host'."""
        return self._backend.name

    @property
    def device(self) -> int | None:
        """Index of this process's CUDA device; None where the group takes no tensors on devices."""
        return self._backend.device

    def __repr__(self) -> str:
        state = "closed" if self._closing else "broken" if self._error else "open"
        return f"<ProcessGroup '{self.name}' rank {self.rank} of {self.size}, {self.backend}, {state}>"

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────

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
        self._check_here()
        extents, kind = check.extents(shape, dtype)
        return self._backend.empty(extents, kind)

    def issued_count(self) -> int:
        """How many collectives this rank has issued in the group, ended or not."""
        return self._issued

    def _begun(self, seq: int) -> bool:
        """Whether this rank has begun the collective of a number: not if it is held back, or a later step."""
        return seq < self._issued and seq not in self._unbegun

    def _seen(self, seq: int) -> set[int]:
        """Other members, by group rank, that are seen to have begun a collective."""
        return self._backend.seen(seq)

    def _open_groups(self) -> int:
        """How many groups of this process are open, the world's included."""
        return sum(group._closing is None for group in self._family)

    async def drain(self) -> None:
        """Return when nothing that was issued here is in flight any more. Of what failed ask the Works.

        Raises:
            UsageError: a `coalesce` block of this task holds something back.
        """
        if self._batches.mine():
            raise UsageError(
                "drain() inside coalesce() would wait for what begins at its end",
                hint="Leave the block first",
            )
        await self._flight.drain()
        while self._composed_tasks:
            await asyncio.wait(self._composed_tasks)
            await self._flight.drain()

    def abort(self, reason: str = "abort() was called") -> None:
        """Break the group at once, on every member: all that is in flight fails with `GroupAborted`.

        Args:
            reason: one line; the others read it.
        """
        self._check_here(closed_is_wrong=False)
        self._failures.forget()
        if self._closing is None or len(self._flight):  # also while closing waits for what is in flight
            self._break(GroupAborted(self.ranks[self.rank], reason))

    async def aclose(self) -> None:
        """Close the group: wait for what is in flight here, say goodbye. Not collective; may be repeated.

        Closing the world closes the connections, too, and every other group of this process with them. A
        group that was rebuilt closes its successor, so that one `async with` holds through all epochs.

        Raises:
            GroupBroken: the group, or one closed with it, broke while operations were in flight, and nobody
                has awaited any of those that failed. Everything is closed all the same. Any other error of an
                operation that nobody awaited, likewise. After an `abort` of this process nothing is raised.
        """
        if self._successor is not None:
            await self._successor.aclose()
            return
        groups = list(self._family) if self._closer is not None else [self]
        await self._close()
        if any(group._failures for group in groups):
            await asyncio.sleep(0)  # whoever awaits is woken in this turn of the loop
        errors = [group._failures.take() for group in groups]
        for error in errors:
            if error is not None:
                error.add_note("Raised by aclose(): nobody awaited the operation that failed.")
                raise error.with_traceback(None)

    async def _close(self) -> None:
        self._check_here(closed_is_wrong=False)
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self._loop.create_future()
        self._short = None
        self._batches.begin()
        try:
            try:
                if self._closer is not None:
                    for group in [group for group in self._family if group is not self]:
                        await group._close()
                await self.drain()
            except asyncio.CancelledError:
                for group in list(self._family) if self._closer is not None else [self]:
                    group.abort("closing the group was cancelled")
                raise
            finally:
                await self._end()
        finally:
            self._closing.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._successor is not None:
            await self._successor.__aexit__(kind, error, trace)
            return
        if error is not None and self._closing is None:
            words = str(error)
            # Peers may wait in any group: a world that ends by an exception takes all with it.
            for group in list(self._family) if self._closer is not None else [self]:
                group.abort(f"{type(error).__name__}: {words}" if words else type(error).__name__)
        await self.aclose()

    async def _end(self) -> None:
        if self._error is None:
            self._watch.leave(self._issued)
        self._flight.close()
        self._watch.close()
        self._backend.retire()
        if self._closer is not None:
            await self._closer()

    async def _ready(self, timeout: float) -> None:
        """Have the backend connect with those of the other members: before anybody uses the group."""
        if self._backend.opens:
            await self._unless_broken(self._backend.open(), timeout)

    async def _stand_by(self, timeout: float) -> None:
        """Others make a group out of this one, without this rank."""
        if self._backend.opens:
            await self._unless_broken(self._backend.bystand(), timeout)

    async def _unless_broken(self, step: Coroutine[Any, Any, None], timeout: float) -> None:
        """Carry out a step that waits for all members. It ends when the group breaks, and at its time."""
        task = self._loop.create_task(step)
        self._opening.add(task)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait([task])
            if self._error is None and not task.cancelled():
                task.result()
        except GroupBroken as error:  # here alone, perhaps: the others wait for this rank
            self._break(error)
        except TimeoutError:
            self._break(CollectiveTimeout(timeout, ()))
        finally:
            self._opening.discard(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._error is not None:
            raise self._error

    # ── issuing ──────────────────────────────────────────────────────────────────────────────────────

    def _issue(
        self,
        asked: Request,
        timeout: Timeout,
        async_op: bool,
        *,
        reserved: int | None = None,
        at_once: bool = False,
    ) -> Work[Any]:
        """Take the number and start. Everything is checked before; nothing here can fail half-way.

        Args:
            reserved: the number, where it was taken before.
            at_once: it starts also in a `coalesce` block: whoever called awaits it there.
        """
        self._check_here(closed_is_wrong=reserved is None)
        source, target, detail = asked.source, asked.target, asked.detail
        place, mark = ("", "") if asked.own else place_of(source, target, self._backend)
        if mark:
            detail = f"{detail}, {mark}" if detail else mark
        check.staging(source, target)
        limit = self.timeout if timeout is None else seconds(timeout)
        kind, (dtype, shape) = asked.kind, asked.agreed
        if ROLES[kind].message:
            stream = (kind, asked.peer, asked.tag, mark)  # each backend matches its own
            number = self._messages.get(stream, 0)
            self._messages[stream] = number + 1
            call = Call(kind, number, dtype, shape, None, asked.peer)
        else:
            seq = self._issued if reserved is None else reserved
            call = Call(kind, seq, dtype, shape, asked.reduce, asked.root, 0, detail)
            self._issued = max(self._issued, seq + 1)
        work: Work[Any] = Work(self, call, self._loop, self._pulse, async_op, self._failures)
        if self._error is not None:
            self._refuse(work)
            return work
        operation = Operation(
            call,
            work,
            source,
            target,
            asked.result,
            self._flight.ended,
            asked.peer,
            asked.tag,
            asked.senders,
            asked.factor,
            asked.source_sizes,
            asked.target_sizes,
            place,
        )
        if self._batches.open and reserved is None:
            begin = partial(self._begin, operation, limit)
            if self._batches.hold(operation, begin, at_once):
                return work
        self._start(operation, limit)
        return work

    def _begin(self, operation: Operation, limit: float) -> None:
        """Start what was held back, unless the group has broken since."""
        if self._error is None:
            self._start(operation, limit)
        else:
            self._refuse(operation.work)

    def _start(self, operation: Operation, limit: float) -> None:
        call, work = operation.call, operation.work
        collective = not call.message
        if collective and self._unbegun:
            self._unbegun.discard(call.seq)
        self._flight.issue(operation, limit)
        self._backend.submit(operation)
        if collective and not work.done():
            gone = self._watch.gone(call.seq)
            if gone is not None:
                self._break(gone)

    def _note(self, work: Work[Any]) -> Operation:
        """Enter in flight what the backend has started by itself."""
        array = work._result
        operation = Operation(work.call, work, array, array, array, self._flight.ended, place=HOST_PLACE)
        self._flight.issue(operation, self.timeout)
        gone = self._watch.gone(work.seq)
        if gone is not None:
            self._loop.call_soon(self._break, gone)
        return operation

    def coalesce(self) -> Batch:
        """Hold back what this task issues on the group, and start it as one batch.

            async with pg.coalesce():
                for tensor in tensors:
                    pg.all_reduce(tensor)

        What the task that enters the block issues in it is numbered in the call, as everywhere, and starts
        when the block is left, also by an exception: peers count on it. Leaving waits for what has
        `async_op=False`. Until then awaiting its Work is a `UsageError`.

        What anybody else issues, also tasks, timers and callbacks born inside, is not in the batch and starts
        at once; so does `new_group` and whatever else has to be awaited in the block: `split`, `agree`,
        `pending_joins`. A collective that starts so has all that was held back before it start first, and so
        have closing and rebuilding; a message, the messages of its tag. A block in a block of the same group
        and task is a part of it.
        """
        self._check_here()
        return Batch(self._batches)

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
                hint="Call it on the loop that made it; threads and synchronous code use aiodist.portal",
            )
        if closed_is_wrong and self._closing is not None:
            raise GroupClosed(
                f"group '{self.name}' is closed", hint="Close it, or leave `async with`, after its last use"
            )

    # ── the end of the group ─────────────────────────────────────────────────────────────────────────

    def _break(self, error: GroupBroken, *, tell: bool = True) -> None:
        """The group is broken. Idempotent: the first cause stays.

        Args:
            error: why.
            tell: whether the other members have to be told.
        """
        if self._error is not None:
            return
        self._error = error
        self._short = None
        self._watch.rest()
        if tell:
            self._watch.tell_broken(error)
        for task in self._opening:
            task.cancel()
        self._backend.abort(self._fail_all)

    def _fail_all(self) -> None:
        assert self._error is not None
        self._failed = True
        self._flight.fail_all(self._error)
        for work in self._late:
            work._fail(self._error)
        self._late = []

    def _stalled(self, operation: Operation) -> None:
        if not operation.call.message:
            self._watch.ask(operation.call.seq)

    def _expired(self, operation: Operation, timeout: float, late: float) -> None:
        self._control.hear()  # a process that was stopped finds its time up, and in its sockets, why
        if self._error is None:
            self._break(self._watch.expired(operation, timeout, late))


def _after_fork() -> None:
    for group in list(_alive):
        group._forked = True
        group._short = None


os.register_at_fork(after_in_child=_after_fork)
