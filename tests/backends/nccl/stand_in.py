"""Communicators of the host, shaped like CuPy's, on streams that are: to see how the engine uses them.

It says nothing about NCCL: results of that are claimed in tests/gpu alone. What it takes over from NCCL's
documents: a communicator connects its members when it is made where NCCL_RUNTIME_CONNECT=0, else its first
collective blocks the launch until all members have launched it; the first sends and receives between two
members always do so. Groups are begun as one. One thread at a time may give a device work.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tests.backends.cuda.stand_in import Devices, memory

_DTYPES = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_AVG = 4
_UFUNCS = (np.add, np.multiply, np.maximum, np.minimum, np.add)


class Meeting:
    """What the members of one communicator share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = threading.Condition()
        self.aborted = False
        self.calls: dict[Any, dict[int, Any]] = {}

    def meet(self, key: Any, rank: int, brought: Any = None, size: int | None = None) -> dict[int, Any]:
        """Wait until all are here → what they brought."""
        with self.turn:
            there = self.calls.setdefault(key, {})
            there[rank] = brought
            self.turn.notify_all()
            while len(there) < (size or self.size):
                if self.aborted:
                    raise ConnectionAbortedError
                self.turn.wait(0.05)
            return there


class Communicator:
    """Shaped like `cupy.cuda.nccl.NcclCommunicator`.

    Attributes:
        sick: what NCCL has found by itself.
        aborted: it is, or is about to be.
    """

    def __init__(self, world: World, size: int, unique: Any, rank: int) -> None:
        if world.refused is not None:
            raise world.refused
        with world.lock:
            self.meeting = world.meetings.setdefault(unique, Meeting(size))
        self.world, self.rank = world, rank
        self.sick: Exception | None = None
        self.aborted = False
        self._numbers = itertools.count()
        self._connected = os.environ.get("NCCL_RUNTIME_CONNECT") == "0"
        self._peers: set[tuple[bool, int]] = set()
        self._begun = 0
        world.communicators.append(self)
        self.meeting.meet("init", rank)

    def connect(self, peers: set[tuple[bool, int]] | None) -> None:
        """What the launch of a group waits for.

        Args:
            peers: of its sends (True) and receives; None: it is a collective.
        """
        if peers is None:
            if not self._connected:
                self._connected = True
                self.meeting.meet("connect", self.rank)
            return
        new = peers - self._peers - {(True, self.rank), (False, self.rank)}
        self._peers |= new
        for way in sorted((self.rank, peer) if sends else (peer, self.rank) for sends, peer in new):
            self.meeting.meet(("connect", *way), self.rank, size=2)

    def commSplit(self, color: int, key: int) -> Communicator | None:  # noqa: N802
        number = self._begun
        self._begun += 1
        there = self.meeting.meet(("split", number), self.rank, (color, key))
        if color < 0:
            return None
        mine = sorted((k, rank) for rank, (c, k) in there.items() if c == color)
        name = ("part", id(self.meeting), number, color)
        self.world.note("split")
        return Communicator(self.world, len(mine), name, [rank for _, rank in mine].index(self.rank))

    def abort(self) -> None:
        self.world.note("abort")
        self.aborted = True
        with self.meeting.turn:
            self.meeting.aborted = True
            self.meeting.turn.notify_all()

    def destroy(self) -> None:
        self.world.note("destroy")

    def check_async_error(self) -> None:
        if self.sick is not None:
            raise self.sick

    def allReduce(self, *arguments: int) -> None:  # noqa: N802
        self._add(None, self._sum, arguments)

    def reduce(self, *arguments: int) -> None:
        self._add(None, self._reduce, arguments)

    def reduceScatter(self, *arguments: int) -> None:  # noqa: N802
        self._add(None, self._reduce_scatter, arguments)

    def allGather(self, *arguments: int) -> None:  # noqa: N802
        self._add(None, self._all_gather, arguments)

    def broadcast(self, *arguments: int) -> None:
        self._add(None, self._broadcast, arguments)

    def send(self, *arguments: int) -> None:
        self._add((True, arguments[-2]), self._send, arguments)

    def recv(self, *arguments: int) -> None:
        self._add((False, arguments[-2]), self._recv, arguments)

    def _add(self, way: tuple[bool, int] | None, work: Callable[..., None], arguments: Any) -> None:
        if self.world.refused is not None:
            raise self.world.refused
        self.world.add(self, way, arguments[-1], lambda: work(*arguments))

    def _sum(self, source: int, target: int, count: int, dtype: int, op: int, _stream: int) -> None:
        result = self._reduced(source, count, dtype, op)
        memory(target, result.nbytes)[:] = result.view(np.uint8)

    def _reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, _stream: int
    ) -> None:
        result = self._reduced(source, count, dtype, op)
        if self.rank == root:
            memory(target, result.nbytes)[:] = result.view(np.uint8)

    def _reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, _stream: int
    ) -> None:
        whole = self._reduced(source, count * self.meeting.size, dtype, op)
        result = whole[count * self.rank : count * (self.rank + 1)]
        memory(target, result.nbytes)[:] = result.view(np.uint8)

    def _reduced(self, source: int, count: int, dtype: int, op: int) -> Any:
        kind = np.dtype(_DTYPES[dtype])
        mine = memory(source, count * kind.itemsize).view(kind).copy()
        there = self.meeting.meet(next(self._numbers), self.rank, mine)
        result = there[0].copy()
        for rank in range(1, self.meeting.size):
            result = _UFUNCS[op](result, there[rank]).astype(kind)
        if op == _AVG:
            result = (result / self.meeting.size if kind.kind == "f" else result // self.meeting.size).astype(
                kind
            )
        return result

    def _all_gather(self, source: int, target: int, count: int, _dtype: int, _stream: int) -> None:
        there = self.meeting.meet(next(self._numbers), self.rank, memory(source, count).copy())
        for rank in range(self.meeting.size):
            memory(target + rank * count, count)[:] = there[rank]

    def _broadcast(self, source: int, target: int, count: int, _dtype: int, root: int, _stream: int) -> None:
        number = next(self._numbers)
        there = self.meeting.meet(number, self.rank, memory(source, count).copy())
        memory(target, count)[:] = there[root]

    def _send(self, source: int, count: int, _dtype: int, peer: int, _stream: int) -> None:
        self.meeting.meet((self.rank, peer, next(self._sent(peer, True))), 0, memory(source, count).copy(), 1)

    def _recv(self, target: int, count: int, _dtype: int, peer: int, _stream: int) -> None:
        there = self.meeting.meet((peer, self.rank, next(self._sent(peer, False))), 1, None, 2)
        memory(target, count)[:] = there[0]

    def _sent(self, peer: int, sends: bool) -> Any:
        """Numbers of the messages of one direction."""
        counts: dict[Any, Any] = self.__dict__.setdefault("counts", {})
        return counts.setdefault((peer, sends), itertools.count())


class World(Devices):
    """All devices of the process, with NCCL.

    Attributes:
        log: 'split', 'abort', 'destroy', in order; 'group 3' where so many calls were given together.
        refused: what NCCL refuses everything with, if anything.
        races: names of the threads that gave a device work while another thread did.
        launching: called inside the end of a group, before it is begun, with its communicators.
    """

    def __init__(self, splits: bool = True) -> None:
        super().__init__()
        self.meetings: dict[Any, Meeting] = {}
        self.communicators: list[Communicator] = []
        self.log: list[str] = []
        self.races: list[str] = []
        self.launching: Callable[[list[Communicator]], object] = lambda communicators: None
        self._issuing: dict[int, str] = {}
        self.modules["cupy.cuda.nccl"] = self.modules["cupy.cuda"].nccl = self._make_nccl(splits)  # type: ignore[attr-defined]

    def note(self, what: str) -> None:
        with self.lock:
            self.log.append(what)

    def add(
        self, communicator: Communicator, way: tuple[bool, int] | None, stream: int, job: Callable[[], None]
    ) -> None:
        """A call of NCCL, in a group or alone."""
        group = getattr(self.local, "group", None)
        if group is None:
            self._start()
            self.local.group.append((communicator, way, stream, job))
            self._end(alone=True)
        else:
            group.append((communicator, way, stream, job))

    def _start(self) -> None:
        self.local.group = []
        with self.lock:
            if self.local.device in self._issuing:
                self.races.append(threading.current_thread().name)
            self._issuing[self.local.device] = threading.current_thread().name

    def _end(self, alone: bool = False) -> None:
        group, self.local.group = self.local.group, None
        if not alone:
            self.note(f"group {len(group)}")
        try:
            self._run(group)
        finally:
            with self.lock:
                self._issuing.pop(self.local.device, None)

    def _run(self, calls: list[Any]) -> None:
        communicators = list({id(call[0]): call[0] for call in calls}.values())
        self.launching(communicators)
        for communicator in communicators:
            ways = [way for other, way, _, _ in calls if other is communicator]
            if None in ways:
                communicator.connect(None)
            communicator.connect({way for way in ways if way is not None})

        # What is sent lies there before anything is received: all of a group are on their way at once.
        sends_first = sorted(calls, key=lambda call: call[1] is None or not call[1][0])

        def run() -> None:
            try:
                for *_, job in sends_first:
                    job()
            except ConnectionAbortedError:
                pass

        if calls:
            self.streams[calls[0][2]].give(run)

    def _make_nccl(self, splits: bool) -> ModuleType:
        nccl = ModuleType("cupy.cuda.nccl")

        def make(size: int, unique: bytes, rank: int) -> Communicator:
            return Communicator(self, size, unique, rank)

        if splits:
            make.commSplit = Communicator.commSplit  # type: ignore[attr-defined]
        nccl.__dict__.update(
            available=True,
            get_version=lambda: 23203,
            get_build_version=lambda: 23203,
            get_unique_id=lambda: os.urandom(128),
            NcclCommunicator=make,
            groupStart=self._start,
            groupEnd=self._end,
        )
        return nccl
