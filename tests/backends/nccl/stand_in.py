"""Communicators of the host, shaped like CuPy's, on streams that are: to see how the engine uses them.

It says nothing about NCCL: results of that are claimed in tests/gpu alone. Like NCCL, a communicator's first
collective blocks its launch until all members have launched it.
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
    """Shaped like `cupy.cuda.nccl.NcclCommunicator`."""

    def __init__(self, world: World, size: int, unique: Any, rank: int) -> None:
        if world.refused is not None:
            raise world.refused
        with world.lock:
            self.meeting = world.meetings.setdefault(unique, Meeting(size))
        self.world, self.rank = world, rank
        self.sick: Exception | None = None
        self._numbers = itertools.count()
        self._connected = False
        self._begun = 0
        world.communicators.append(self)
        self.meeting.meet("init", rank)

    def connect(self) -> None:
        if not self._connected:
            self._connected = True
            self.meeting.meet("connect", self.rank)

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
        with self.meeting.turn:
            self.meeting.aborted = True
            self.meeting.turn.notify_all()

    def destroy(self) -> None:
        self.world.note("destroy")

    def check_async_error(self) -> None:
        if self.sick is not None:
            raise self.sick

    def allReduce(self, *arguments: int) -> None:  # noqa: N802
        self._add(True, arguments[-1], self._sum, arguments)

    def send(self, *arguments: int) -> None:
        self._add(False, arguments[-1], self._send, arguments)

    def recv(self, *arguments: int) -> None:
        self._add(False, arguments[-1], self._recv, arguments)

    def _add(self, collective: bool, stream: int, work: Callable[..., None], arguments: Any) -> None:
        if self.world.refused is not None:
            raise self.world.refused
        self.world.add(self, collective, stream, lambda: work(*arguments))

    def _sum(self, source: int, target: int, count: int, dtype: int, op: int, _stream: int) -> None:
        assert (dtype, op) == (7, 0)
        number = next(self._numbers)
        there = self.meeting.meet(number, self.rank, memory(source, count * 4).view(np.float32).copy())
        memory(target, count * 4).view(np.float32)[:] = sum(there[rank] for rank in range(self.meeting.size))

    def _send(self, source: int, count: int, _dtype: int, peer: int, _stream: int) -> None:
        self.meeting.meet((self.rank, peer, next(self._numbers)), 0, memory(source, count).copy(), 2)

    def _recv(self, target: int, count: int, _dtype: int, peer: int, _stream: int) -> None:
        there = self.meeting.meet((peer, self.rank, next(self._numbers)), 1, None, 2)
        memory(target, count)[:] = there[0]


class World(Devices):
    """All devices of the process, with NCCL.

    Attributes:
        log: 'split', 'abort', 'destroy', in order; 'group 3' where so many calls were given together.
        refused: what NCCL refuses everything with, if anything.
    """

    def __init__(self, splits: bool = True) -> None:
        super().__init__()
        self.meetings: dict[Any, Meeting] = {}
        self.communicators: list[Communicator] = []
        self.log: list[str] = []
        self.modules["cupy.cuda.nccl"] = self.modules["cupy.cuda"].nccl = self._make_nccl(splits)  # type: ignore[attr-defined]

    def note(self, what: str) -> None:
        with self.lock:
            self.log.append(what)

    def add(self, communicator: Communicator, collective: bool, stream: int, job: Callable[[], None]) -> None:
        """A call of NCCL, in a group or alone."""
        group = getattr(self._local, "group", None)
        if group is None:
            self._run([(communicator, collective, stream, job)])
        else:
            group.append((communicator, collective, stream, job))

    def _run(self, calls: list[Any]) -> None:
        for communicator, collective, _, _ in calls:
            if collective:
                communicator.connect()

        def run() -> None:
            try:
                for *_, job in calls:
                    job()
            except ConnectionAbortedError:
                pass

        if calls:
            self.streams[calls[0][2]].give(run)

    def _start(self) -> None:
        self._local.group = []

    def _end(self) -> None:
        group, self._local.group = self._local.group, None
        self.note(f"group {len(group)}")
        self._run(group)

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
