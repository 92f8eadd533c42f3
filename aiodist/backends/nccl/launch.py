"""One operation as calls of NCCL: what is done on the stream before them, the calls, what is done after.

The calls of several operations go into one NCCL group, so they are told from the rest. What is enqueued here
goes to CuPy's current stream, which is that of the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.arrays.device import DeviceArray
from aiodist.backends.base import Array
from aiodist.backends.buffers import cut
from aiodist.backends.cuda import arrays
from aiodist.backends.foreign.moves import Move, moves_of
from aiodist.backends.foreign.task import Task, prepare
from aiodist.backends.nccl.tables import BYTE, Native, native, wider
from aiodist.base.operations import ROLES
from aiodist.base.types import Call as Agreed
from aiodist.base.types import Kind

Call = Callable[[Any, int], None]
"""A call that enqueues on (communicator, raw stream)."""


@dataclass(slots=True)
class Launch:
    """The launch of one operation; see the module.

    Attributes:
        task: the operation.
        calls: into the NCCL group.
        after: once it is complete, in order.
        keep: memory that NCCL works on, besides the task's.
    """

    task: Task
    calls: list[Call] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    keep: list[Array] = field(default_factory=list)


class Ways(NamedTuple):
    """The pairs of members that send directly: NCCL connects two of them in their first message.

    Attributes:
        root: group rank of the member with which all others exchange; -1: each with each.
        inward: the others send, and the root receives; else the other way round.
    """

    root: int
    inward: bool

    def moves(self, rank: int, size: int) -> list[tuple[bool, int]]:
        """This rank's part: (whether it sends, the peer)."""
        others = [peer for peer in range(size) if peer != rank]
        if self.root < 0:
            return [(sends, peer) for sends in (True, False) for peer in others]
        if rank == self.root:
            return [(not self.inward, peer) for peer in others]
        return [(self.inward, self.root)]


_ALL_WAYS = Ways(-1, True)


def ways_of(call: Agreed) -> Ways | None:
    """The ways of a collective, by what all members agree on; None where NCCL has an algorithm for it."""
    roles = ROLES[call.kind]
    if roles.message:
        return None
    gathers = roles.reduces and call.kind is not Kind.all_reduce and not _native(call)
    if call.kind in _MAKERS and not gathers:
        return None
    return Ways(call.root, roles.root_gets) if roles.rooted else _ALL_WAYS


def _native(call: Agreed) -> bool:
    """Whether NCCL has a reduction, perhaps for wider elements."""
    op = call.combine
    assert op is not None
    return native(wider(call.dtype, op) or call.dtype, op) is not None


class LaunchMaker:
    """The maker of one group's launches.

    Args:
        cupy: the module.
        device: index of the device.
        rank: group rank of this process, of `size`.
    """

    def __init__(self, cupy: Any, device: int, rank: int, size: int) -> None:
        self._cupy = cupy
        self._device = device
        self._rank, self._size = rank, size

    def collective(self, bare: Task) -> Launch:
        """The launch of a collective; what comes before its calls is enqueued."""
        launch = self._filled(prepare(bare.operation, self._rank, self._size, self._allocate, averages=True))
        makers = _UNEVEN_MAKERS if launch.task.uneven else _MAKERS
        makers.get(launch.task.kind, LaunchMaker._exchange)(self, launch)
        task = launch.task
        if task.rows:
            launch.after.append(lambda: arrays.fold(self._cupy, task.rows, _given(task.target), task.reduce))
        launch.after.append(lambda: arrays.empty(self._cupy, task))
        return launch

    def message(self, bare: Task) -> Launch:
        """The launch of a message on a lane of two: the sender is rank 0 there, the receiver rank 1.

        It is a broadcast, for which a communicator is connected from the start; for sends it is not.
        """
        launch = self._filled(prepare(bare.operation, self._rank, self._size, self._allocate))
        task = launch.task
        array = _given(task.target if task.source is None else task.source)
        launch.calls.append(_broadcasting(array.pointer, array.pointer, array.nbytes, 0))
        launch.after.append(lambda: arrays.empty(self._cupy, task))
        return launch

    def to_oneself(self) -> Callable[[Task], Launch]:
        """The launches of one message on a lane of one: of its send, then of its receive.

        The receive's is a broadcast from one array into the other. The send has nothing to call.
        """
        sent: list[DeviceArray] = []

        def make(bare: Task) -> Launch:
            launch = self._filled(prepare(bare.operation, self._rank, self._size, self._allocate))
            task = launch.task
            if task.target is None:
                sent.append(_given(task.source))
                return launch
            (source,), target = sent, _given(task.target)
            launch.calls.append(_broadcasting(source.pointer, target.pointer, target.nbytes, 0))
            launch.after.append(lambda: arrays.empty(self._cupy, task))
            return launch

        return make

    def connecting(self, ways: Ways) -> tuple[Call, DeviceArray]:
        """A byte each way, which connects the members for all that goes there later; and memory for it."""
        memory = self._allocate(self._size + 1, np.dtype(np.uint8))
        exchanged = []
        for sends, peer in ways.moves(self._rank, self._size):
            start = self._size if sends else peer
            exchanged.append(Move(sends, peer, memory[start : start + 1]))
        return _moving(exchanged), memory

    def _filled(self, task: Task) -> Launch:
        arrays.fill(self._cupy, task)
        return Launch(task)

    def _allocate(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        return arrays.allocate(self._cupy, self._device, count, dtype)

    # ── moves ────────────────────────────────────────────────────────────────────────────────────────

    def _broadcast(self, launch: Launch) -> None:
        array, root = _given(launch.task.target), launch.task.root
        if array.nbytes:
            launch.calls.append(_broadcasting(array.pointer, array.pointer, array.nbytes, root))

    def _all_gather(self, launch: Launch) -> None:
        launch.calls += _gathering(_given(launch.task.source), _given(launch.task.target))

    def _exchange(self, launch: Launch) -> None:
        launch.calls.append(_moving(moves_of(launch.task, self._rank, self._size)))

    def _all_gather_uneven(self, launch: Launch) -> None:
        """Add a broadcast of each part."""
        own = _given(launch.task.source).pointer
        for member, part in enumerate(map(_given, launch.task.recv)):
            if part.size:
                read = own if member == self._rank else part.pointer
                launch.calls.append(_broadcasting(read, part.pointer, part.nbytes, member))

    # ── reductions ───────────────────────────────────────────────────────────────────────────────────

    def _reduction(self, launch: Launch) -> None:
        task = launch.task
        source = _given(task.source)
        target = None if task.target is None else _given(task.target)
        if not source.size:
            return
        wide = wider(source.dtype, task.reduce)
        if wide is not None:
            source, target = self._widened(launch, source, target, wide)
        how = native(source.dtype, task.reduce)
        if how is None:
            self._composed(launch)
            return
        if task.uneven:
            launch.calls += self._parts_reduced(task, source, target, how)
            return
        kind, root = task.kind, task.root
        read, written = source.pointer, 0 if target is None else target.pointer
        code, op, per_element = how
        count = (source if target is None else target).size * per_element

        def call(comm: Any, stream: int) -> None:
            if kind is Kind.all_reduce:
                comm.allReduce(read, written, count, code, op, stream)
            elif kind is Kind.reduce:
                comm.reduce(read, written, count, code, op, root, stream)
            else:
                comm.reduceScatter(read, written, count, code, op, stream)

        launch.calls.append(call)

    def _parts_reduced(
        self, task: Task, source: DeviceArray, target: DeviceArray | None, how: Native
    ) -> list[Call]:
        """The calls of an uneven reduce_scatter: each part is reduced to its member."""
        written = [0] * self._size
        written[self._rank] = 0 if target is None else target.pointer
        parts = cut(source, [part.size for part in task.send], self._size)
        return [
            _reducing(part.pointer, written[member], part.size * how.per_element, how, member)
            for member, part in enumerate(map(_given, parts))
            if part.size
        ]

    def _widened(
        self, launch: Launch, source: DeviceArray, target: DeviceArray | None, dtype: np.dtype[Any]
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Wider arrays in place of the source and the target; the result is made narrow again."""
        wide_source = self._allocate(source.size, dtype)
        launch.keep.append(wide_source)
        arrays.copy(self._cupy, wide_source, source)
        if target is None:
            return wide_source, None
        wide_target = self._allocate(target.size, dtype)
        launch.after.append(lambda: arrays.copy(self._cupy, target, wide_target))
        return wide_source, wide_target

    def _composed(self, launch: Launch) -> None:
        """Gather what this rank reduces; afterwards it is reduced here, in rank order."""
        task = launch.task
        if task.kind is Kind.all_reduce:  # NCCL has an algorithm for the gathering
            source = _given(task.source)
            rows = self._allocate(source.size * self._size, source.dtype)
            launch.calls += _gathering(source, rows)
            task.gathered(cut(rows, None, self._size))
        else:
            self._exchange(launch)


_MAKERS: dict[Kind, Callable[[LaunchMaker, Launch], None]] = {
    Kind.all_reduce: LaunchMaker._reduction,
    Kind.reduce: LaunchMaker._reduction,
    Kind.reduce_scatter: LaunchMaker._reduction,
    Kind.broadcast: LaunchMaker._broadcast,
    Kind.all_gather: LaunchMaker._all_gather,
}
"""The makers of what NCCL has an algorithm for; the rest is exchanged."""

_UNEVEN_MAKERS: dict[Kind, Callable[[LaunchMaker, Launch], None]] = {
    Kind.all_gather: LaunchMaker._all_gather_uneven,
    Kind.reduce_scatter: LaunchMaker._reduction,
}
"""The makers, likewise, for parts that differ in size."""


def _gathering(source: DeviceArray, target: DeviceArray) -> list[Call]:
    read, written, nbytes = source.pointer, target.pointer, source.nbytes
    return [lambda comm, stream: comm.allGather(read, written, nbytes, BYTE, stream)] if nbytes else []


def _broadcasting(read: int, written: int, nbytes: int, root: int) -> Call:
    return lambda comm, stream: comm.broadcast(read, written, nbytes, BYTE, root, stream)


def _reducing(read: int, written: int, count: int, how: Native, root: int) -> Call:
    return lambda comm, stream: comm.reduce(read, written, count, how.dtype, how.op, root, stream)


def _moving(these: Sequence[Move]) -> Call:
    """Sends and receives as calls."""
    ends = [(sends, peer, _given(array).pointer, array.nbytes) for sends, peer, array in these]

    def call(comm: Any, stream: int) -> None:
        for sends, peer, pointer, nbytes in ends:
            (comm.send if sends else comm.recv)(pointer, nbytes, BYTE, peer, stream)

    return call


def _given(array: Array | None) -> DeviceArray:
    assert isinstance(array, DeviceArray)
    return array
