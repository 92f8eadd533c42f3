"""Streams, events and communicators of the host, shaped like CuPy's: to see how the engine uses them.

It shows the order of things: what waits for what, which thread is held up, what is stopped, kept and given
back. It says nothing about NCCL or a device: results on those are claimed in tests/gpu alone. Each stream is
a thread, device memory is the host's, and all ranks are in one process. Like NCCL, a communicator's first
collective blocks its launch until all members have launched it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Tensor:
    """A user's tensor on a device."""

    def __init__(self, array: Any) -> None:
        self.array: Any = np.asarray(array)
        self.device = SimpleNamespace(id=0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, "strides": self.array.strides, "version": 2}


class Stream:
    """Does one thing after the other, in a thread."""

    def __init__(self, world: World, **_options: Any) -> None:
        self.ptr = next(world.ids)
        self._world = world
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        world.streams[self.ptr] = self
        self.thread = threading.Thread(target=self._run, name=f"stream {self.ptr}")
        self.thread.start()

    def give(self, job: Callable[[], object] | None) -> None:
        self._queue.put(job)

    def synchronize(self) -> None:
        over = threading.Event()
        self.give(over.set)
        assert over.wait(30)

    def __enter__(self) -> None:
        self._world.stack().append(self)

    def __exit__(self, *_: object) -> None:
        self._world.stack().pop()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job()


class Event:
    """A place in a stream."""

    def __init__(self, world: World, **_options: Any) -> None:
        self.ptr = next(world.ids)
        self._world = world
        self.reached = threading.Event()
        world.events[self.ptr] = self

    def record(self, stream: Stream) -> None:
        stream.give(self.reached.set)

    def synchronize(self) -> None:
        self.reached.wait()


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


def memory(address: int, nbytes: int) -> Array:
    """The bytes there."""
    there: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(there, np.uint8)


class Cell(np.ndarray[Any, np.dtype[Any]]):
    """`cupy.ndarray`: on memory that somebody owns."""

    def __new__(cls, shape: Any, dtype: Any, pointer: Any, strides: Any = None) -> Cell:
        low, nbytes, offset = pointer
        whole = (ctypes.c_char * max(nbytes, 1)).from_address(low)
        return super().__new__(cls, shape, dtype, whole, offset, strides)


class World:
    """All devices of the process, and what was done with them.

    Attributes:
        log: 'split', 'abort', 'destroy', in order; 'group 3' where so many calls were given together.
        refused: what NCCL refuses everything with, if anything.
        modules: what `import cupy` is to find.
    """

    def __init__(self, splits: bool = True) -> None:
        self.ids = itertools.count(1)
        self.lock = threading.Lock()
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.communicators: list[Communicator] = []
        self.log: list[str] = []
        self.refused: Exception | None = None
        self._local = threading.local()
        self.callers = Stream(self)
        self.modules = self._make(splits)

    def stack(self) -> list[Stream]:
        """Current streams of this thread."""
        if not hasattr(self._local, "stack"):
            self._local.stack = [self.callers]
        stack: list[Stream] = self._local.stack
        return stack

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

    def close(self) -> None:
        """End the streams; whatever is on them has to be over."""
        for stream in list(self.streams.values()):
            stream.give(None)
        for stream in list(self.streams.values()):
            stream.thread.join(30)

    def _make(self, splits: bool) -> dict[str, ModuleType]:
        cupy, cuda, nccl = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.nccl")

        class Device:
            def __init__(self, index: int) -> None: ...
            def use(self) -> None: ...
            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...

        class CUDARuntimeError(Exception):
            """Never raised."""

        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: 8,
            eventRecord=lambda event, stream: self.events[event].record(self.streams[stream]),
            streamWaitEvent=lambda stream, event: self.streams[stream].give(self.events[event].reached.wait),
            deviceGetPCIBusId=lambda index: f"0000:{index:02}:00.0",
            getDeviceProperties=lambda index: {"uuid": bytes([index]) * 16},
        )
        cuda.__dict__.update(
            runtime=runtime,
            nccl=nccl,
            Device=Device,
            Stream=lambda **options: Stream(self, **options),
            Event=lambda **options: Event(self, **options),
            get_current_stream=lambda device: self.stack()[-1],
            UnownedMemory=lambda low, nbytes, owner, device: (low, nbytes),
            MemoryPointer=lambda owned, offset: (*owned, offset),
        )

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

        def copyto(to: Array, source: Array) -> None:
            stream = self.stack()[-1]
            stream.give(lambda: np.copyto(to, source))

        def empty(nbytes: int, _dtype: Any) -> Any:
            array = np.full(nbytes, 77, np.uint8)
            self._local.made = array
            return SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data), owner=array)

        cupy.__dict__.update(__version__="14.2.0", cuda=cuda, ndarray=Cell, copyto=copyto, empty=empty)
        return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
