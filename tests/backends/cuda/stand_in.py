"""Streams, events and memory of the host, shaped like CuPy's: to see how backends use them.

It shows the order of things: what waits for what, which thread is held up, what is kept and given back. It
says nothing about CUDA: results on devices are claimed in tests/gpu alone. Each stream is a thread, device
memory is the host's, and all ranks are in one process. What is given back is overwritten: on the device
in the order of its stream, on the host at once.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.backends.cuda import emulated

Array = np.ndarray[Any, np.dtype[Any]]

FRESH, GONE = 77, 0xEE  # bytes of new memory, and of what was given back


class Tensor:
    """A user's tensor on a device.

    Args:
        array: its memory, with its strides.
        device: index of the device.
    """

    def __init__(self, array: Any, device: int = 0) -> None:
        self.array: Any = np.asarray(array)
        self.dtype = self.array.dtype
        self.device = SimpleNamespace(id=device)
        self.data = SimpleNamespace(ptr=self.array.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, "strides": self.array.strides, "version": 2}


class Lent(np.ndarray[Any, np.dtype[Any]]):
    """Pinned memory: what it was lent from outlives it."""


class Stream:
    """Does one thing after the other, in a thread."""

    def __init__(self, devices: Devices, **_options: Any) -> None:
        self.ptr = next(devices.ids)
        self._devices = devices
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        devices.streams[self.ptr] = self
        devices.users.append(threading.current_thread())
        self.thread = threading.Thread(target=self._run, name=f"stream {self.ptr}", daemon=True)
        self.thread.start()

    def give(self, job: Callable[[], object] | None) -> None:
        self._queue.put(job)

    def synchronize(self) -> None:
        over = threading.Event()
        self.give(over.set)
        assert over.wait(30)

    def __enter__(self) -> None:
        self._devices.stack().append(self)

    def __exit__(self, *_: object) -> None:
        self._devices.stack().pop()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
            del job


class Event:
    """A place in a stream."""

    def __init__(self, devices: Devices, **_options: Any) -> None:
        self.ptr = next(devices.ids)
        self.reached = threading.Event()
        devices.events[self.ptr] = self

    def record(self, stream: Stream) -> None:
        stream.give(self.reached.set)

    def synchronize(self) -> None:
        self.reached.wait()


def memory(address: int, nbytes: int) -> Array:
    """The bytes there."""
    there: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(there, np.uint8)


class Kernel:
    """A kernel of a `RawModule`: carried out in the order of the stream."""

    def __init__(self, devices: Devices, name: str) -> None:
        self._devices, self._name = devices, name

    def compile(self) -> None:
        self._devices.compiled.append(self._name)

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        assert self._name in self._devices.compiled or self._devices.lazy
        self._devices.stack()[-1].give(partial(emulated.run, self._name, arguments))


class CUDARuntimeError(Exception):
    """What calls of the driver raise."""


class Devices:
    """All devices of the process, and what was done with them.

    Args:
        count: how many there are.

    Attributes:
        callers: the stream on which tests compute.
        users: threads that made streams or pinned memory, which may take long.
        pinned: sizes of the pinned memory that was asked for.
        returned: how often such memory was given back.
        copies: begun between a device and the host.
        free: copies wait for it; it is set, normally.
        refused: what such copies are refused with, if anything.
        modules: what `import cupy` is to find.
        local: of each thread: its `device`, and the stack of its streams.
        compiled: names of the kernels that are loaded. Launching another one fails: it would wait for an idle
            device.
        lazy: it does not.
    """

    def __init__(self, count: int = 8) -> None:
        self.ids = itertools.count(1)
        self.lock = threading.Lock()
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.users: list[threading.Thread] = []
        self.pinned: list[int] = []
        self.returned = 0
        self.copies: list[str] = []
        self.free = threading.Event()
        self.free.set()
        self.refused: Exception | None = None
        self.compiled: list[str] = []
        self.lazy = False
        self._kept: list[Array] = []
        self.local = threading.local()
        self.callers = Stream(self)
        self.users.clear()
        self.modules = self._make(count)

    def stack(self) -> list[Stream]:
        """Current streams of this thread."""
        if not hasattr(self.local, "stack"):
            self.local.stack = [self.callers]
        stack: list[Stream] = self.local.stack
        return stack

    def close(self) -> None:
        """End the streams; whatever is on them has to be over."""
        for stream in list(self.streams.values()):
            stream.give(None)
        for stream in list(self.streams.values()):
            stream.thread.join(30)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────

    def _new(self, nbytes: int) -> Array:
        made = np.full(max(nbytes, 1), FRESH, np.uint8)
        self._kept.append(made)  # whoever uses what was given back finds other bytes, and crashes nothing
        return made

    def _empty(self, shape: Any, dtype: Any) -> Tensor:
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        made = self._new(nbytes)
        tensor = Tensor(made[:nbytes].view(dtype).reshape(shape))
        weakref.finalize(tensor, self.stack()[-1].give, partial(made.fill, GONE)).atexit = False
        return tensor

    def _pin(self, nbytes: int) -> Lent:
        self.users.append(threading.current_thread())
        self.pinned.append(nbytes)
        made = self._new(nbytes)
        lent = made.view(Lent)

        def back() -> None:
            made.fill(GONE)
            self.returned += 1

        weakref.finalize(lent, back).atexit = False
        return lent

    def _copy(self, to: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        if self.refused is not None:
            raise self.refused

        def copy() -> None:
            self.free.wait()
            memory(to, nbytes)[:] = memory(source, nbytes)

        self.streams[stream].give(copy)
        self.copies.append(kind)

    # ── modules ──────────────────────────────────────────────────────────────────────────────────────

    def _make(self, count: int) -> dict[str, ModuleType]:
        cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")

        devices = self

        class Device:
            def __init__(self, index: int = 0) -> None:
                self.index = index

            def synchronize(self) -> None:
                devices.callers.synchronize()

            def use(self) -> None:
                devices.local.device = self.index

            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...

        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: count,
            runtimeGetVersion=lambda: 12080,
            eventRecord=lambda event, stream: self.events[event].record(self.streams[stream]),
            streamWaitEvent=lambda stream, event: self.streams[stream].give(self.events[event].reached.wait),
            deviceGetPCIBusId=lambda index: f"0000:{index:02}:00.0",
            memcpyAsync=self._copy,
            memcpyDeviceToHost="out",
            memcpyHostToDevice="in",
        )
        cuda.__dict__.update(
            runtime=runtime,
            Device=Device,
            Stream=lambda **options: Stream(self, **options),
            Event=lambda **options: Event(self, **options),
            get_current_stream=lambda device: self.stack()[-1],
            alloc_pinned_memory=self._pin,
        )

        class RawModule:
            def __init__(self, code: str, options: tuple[str, ...]) -> None:
                self._code = code

            def get_function(self, name: str) -> Kernel:
                assert f"{name}(" in self._code
                return Kernel(devices, name)

        cupy.__dict__.update(
            __version__="14.2.0", cuda=cuda, ndarray=Tensor, RawModule=RawModule, empty=self._empty
        )
        return {"cupy": cupy, "cupy.cuda": cuda}
