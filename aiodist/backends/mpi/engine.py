"""MPI's non-blocking calls as an engine.

All members post the same collectives in the order of their numbers, after they have agreed on each. Results
are MPI's: ranks may get different bits of one sum (law 3 is its own).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.foreign.engine import Done, Engine, Setup
from aiodist.backends.foreign.moves import Move
from aiodist.backends.foreign.task import Task
from aiodist.backends.mpi import progress, tables
from aiodist.backends.mpi.communicator import create
from aiodist.backends.mpi.library import Library, load
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import MpiJob, MpiProgress, Posted
from aiodist.backends.mpi.widened import widened
from aiodist.backends.release import once
from aiodist.backends.threads import post
from aiodist.base.errors import BackendUnavailable
from aiodist.base.types import Kind

_PLACE = struct.Struct("<II")  # rank and size in COMM_WORLD


class MpiEngine(Engine):
    """The engine of tensors on the host, by MPI."""

    name = "mpi"
    uneven = frozenset({Kind.all_gather, Kind.reduce_scatter})

    _library: Library  # from `open` on

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._largest = tables.LARGEST
        self._owner = object()
        self._progress: MpiProgress | None = None
        self._comm: Any = None
        self._aborted = False

    # ── before there is a group ──────────────────────────────────────────────────────────────────────

    @classmethod
    def check(cls) -> None:
        """Load MPI."""
        load()

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        """This process's place in COMM_WORLD."""
        library = load()
        return _PLACE.pack(library.rank, library.size)

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        """The reason why the processes are not one rank each of one MPI job; '' if they are."""
        places = [_PLACE.unpack(place) for place in told]
        if any(size != places[0][1] for _, size in places) or len({rank for rank, _ in places}) < len(places):
            return f"they are not one MPI job; start all {len(told)} with one mpirun"
        return ""

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Make the group's communicator."""
        loop = self.setup.loop
        self._library = library = await loop.run_in_executor(None, load)
        told = await self.setup.gather(self.tell(None))
        if why := self.fits(told):
            raise BackendUnavailable(f"backend 'mpi' cannot serve this group: {why}")
        members = [_PLACE.unpack(place)[0] for place in told]
        self._progress = this.hold(library)
        self._comm = await create(library, self._progress, members, self.setup.context)

    def abort(self, released: Done) -> None:
        """Post nothing more. What is open has a moment to end; then its memory is MPI's."""
        self._aborted = True
        if self._progress is None:
            released()
            return
        this.broken = True
        loop, tell = self.setup.loop, once(released)
        late = loop.call_later(progress.GRACE, tell)

        def over() -> None:
            late.cancel()
            tell()

        self._progress.abandon(self._owner, partial(post, loop, over))

    def close(self) -> None:
        """Give the communicator back, unless operations may be open in it."""
        thread, self._progress = self._progress, None
        if thread is None:
            return
        if self._comm is not None and not self._aborted:
            thread.call(self._comm.Free)
        this.release()

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def exchange(self, moves: Sequence[Move], done: Done) -> None:
        """Post all moves at once, under one tag: between two members they match in their order."""

        def begin() -> Iterator[Posted]:
            # Receives first: then what comes has a place.
            for move in sorted(moves, key=lambda move: move.sends):
                step = self._send if move.sends else self._receive
                yield from step(move.array, move.peer, tables.EXCHANGE_TAG)

        self._post(begin, done)

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Post one message, under the tag of its number."""
        self._post(partial(self._send, _given(task.source), peer, self._tag(number)), done)

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Post one message, under the tag of its number."""
        self._post(partial(self._receive, _given(task.target), peer, self._tag(number)), done)

    def _tag(self, number: int) -> int:
        return tables.message_tag(number, self._library.highest_tag)

    def _send(self, array: Array, peer: int, tag: int) -> Iterator[Posted]:
        for piece in tables.pieces(array.size, self._largest) or [slice(0)]:
            yield Posted(self._comm.Isend(self._buffer(array[piece]), peer, tag))

    def _receive(self, array: Array, peer: int, tag: int) -> Iterator[Posted]:
        for piece in tables.pieces(array.size, self._largest) or [slice(0)]:
            buffer = self._buffer(array[piece])
            yield Posted(self._comm.Irecv(buffer, peer, tag), buffer[2], buffer[1])

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────

    def prepare(self, operation: Operation) -> Task:
        """The task of an operation; widened where MPI does not reduce its dtype, or not as aiodist does."""
        task, call = super().prepare(operation), operation.call
        wide = None if call.reduce is None else tables.wide(call.reduce, call.dtype)
        return task if wide is None else widened(task, wide)

    def all_reduce(self, task: Task, done: Done) -> None:
        """Post an Iallreduce."""
        source, target = _given(task.source), _given(task.target)

        def begin() -> Iterator[Posted]:
            op = self._op(task)
            for piece in tables.pieces(target.size, self._largest):
                given = self._library.mpi.IN_PLACE if target is source else self._buffer(source[piece])
                yield Posted(self._comm.Iallreduce(given, self._buffer(target[piece]), op))

        self._post(begin, done)

    def broadcast(self, task: Task, done: Done) -> None:
        """Post an Ibcast."""
        target = _given(task.target)

        def begin() -> Iterator[Posted]:
            for piece in tables.pieces(target.size, self._largest):
                yield Posted(self._comm.Ibcast(self._buffer(target[piece]), task.root))

        self._post(begin, done)

    def reduce(self, task: Task, done: Done) -> None:
        """Post an Ireduce."""
        self._post(partial(self._reduce, task, _given(task.source), task.target, task.root), done)

    def _reduce(self, task: Task, source: Array, target: Array | None, root: int) -> Iterator[Posted]:
        op, here = self._op(task), self.setup.rank == root
        for piece in tables.pieces(source.size, self._largest):
            given = self._library.mpi.IN_PLACE if target is source and here else self._buffer(source[piece])
            taken = self._buffer(_given(target)[piece]) if here else None
            yield Posted(self._comm.Ireduce(given, taken, op, root))

    def all_gather(self, task: Task, done: Done) -> None:
        """Post an Iallgather, or Iallgatherv; messages where it is too much for one call."""
        source, target = _given(task.source), _given(task.target)
        if task.uneven and target.size <= self._largest:
            self._post(partial(self._all_gather_v, task, source, target), done)
        elif task.uneven:
            self.compose(task, done)
        else:
            self._once("Iallgather", source.size, task, done)

    def _all_gather_v(self, task: Task, source: Array, target: Array) -> Iterator[Posted]:
        if target.size:
            data, _, datatype = self._buffer(target)
            counts = [part.size for part in task.recv]
            yield Posted(self._comm.Iallgatherv(self._buffer(source), [data, counts, datatype]))

    def reduce_scatter(self, task: Task, done: Done) -> None:
        """Post an Ireduce_scatter_block, or Ireduce_scatter; an Ireduce for each part where it is too much
        for one call."""
        source, target = _given(task.source), _given(task.target)

        def begin() -> Iterator[Posted]:
            if source.size > self._largest:
                for root, part in enumerate(task.send):
                    yield from self._reduce(task, part, target, root)
            elif source.size and task.uneven:
                counts = [part.size for part in task.send]
                buffers = self._buffer(source), self._buffer(target)
                yield Posted(self._comm.Ireduce_scatter(*buffers, counts, self._op(task)))
            elif source.size:
                buffers = self._buffer(source, target.size), self._buffer(target)
                yield Posted(self._comm.Ireduce_scatter_block(*buffers, self._op(task)))

        self._post(begin, done)

    def gather(self, task: Task, done: Done) -> None:
        """Post an Igather, or messages."""
        self._once("Igather", _given(task.source).size, task, done, task.root)

    def scatter(self, task: Task, done: Done) -> None:
        """Post an Iscatter, or messages."""
        self._once("Iscatter", _given(task.target).size, task, done, task.root)

    def all_to_all(self, task: Task, done: Done) -> None:
        """Post an Ialltoall, or messages."""
        self._once("Ialltoall", _given(task.source).size // self.setup.size, task, done)

    def _once(self, name: str, count: int, task: Task, done: Done, *root: int) -> None:
        """Post one call, of parts of `count` elements; none where there is nothing, messages where it is too
        much for one call."""
        if count * self.setup.size > self._largest:
            self.compose(task, done)
            return

        def begin() -> Iterator[Posted]:
            if count:
                arrays = task.source, task.target
                buffers = [None if array is None else self._buffer(array, count) for array in arrays]
                yield Posted(getattr(self._comm, name)(*buffers, *root))

        self._post(begin, done)

    # ── to and from the thread ───────────────────────────────────────────────────────────────────────

    def _post(self, begin: Callable[[], Iterator[Posted]], done: Done) -> None:
        assert self._progress is not None
        loop = self.setup.loop
        self._progress.post(
            MpiJob(self._owner, begin, partial(post, loop, done), partial(post, loop, self._failed))
        )

    def _failed(self, error: Exception) -> None:
        if not self._aborted:
            self.setup.failed(error)

    def _buffer(self, array: Array, count: int | None = None) -> list[Any]:
        """A contiguous array as mpi4py takes it. NumPy has dtypes that have no buffers, so it is bytes.

        Args:
            count: elements of each part, where it has one for each member.
        """
        datatype = getattr(self._library.mpi, tables.datatype(array.dtype))
        return [array.view(np.uint8), array.size if count is None else count, datatype]

    def _op(self, task: Task) -> Any:
        return getattr(self._library.mpi, tables.operator(task.reduce, _given(task.source).dtype))


def _given(array: Array | None) -> Array:
    assert array is not None
    return array
