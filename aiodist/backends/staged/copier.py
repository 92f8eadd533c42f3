"""Copies between a device and the host: a thread and a stream for each direction, for all groups of a world.

Each direction keeps its order. What is to be copied waits for the caller's streams; until it begins it can be
cancelled, so that a group whose caller's stream is stuck can end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.arrays.device import DeviceArray
from aiodist.backends.base import Array, Operation
from aiodist.backends.cuda import kernels
from aiodist.backends.cuda.arrays import allocate, copy
from aiodist.backends.cuda.completion import arrays_of
from aiodist.backends.cuda.library import load
from aiodist.backends.cuda.streams import after, blocking_mark, caller_streams, make_stream, mark
from aiodist.backends.threads import Worker, fulfil
from aiodist.base.errors import BackendUnavailable

_HINT = "nvidia-smi says what else uses it, and whether it takes one process only"

Done = Callable[[Exception | None], None]

Pairs = list[tuple[Array, Array]]
"""(on the device, on the host), of the same shape, with elements."""


class Transfer:
    """The copies of one operation in one direction.

    Args:
        marks: events of the caller's streams, before which nothing is read or written on the device.
        pairs: says what, called in the thread. It may make memory of the host, which can take long.
        done: called in the thread, once, unless the transfer was cancelled.
    """

    def __init__(self, marks: Sequence[Any], pairs: Callable[[], Pairs], done: Done) -> None:
        self.marks = marks
        self.pairs = pairs
        self.done = done
        self._first = threading.Lock()  # taken first by the copy, or by its end

    def begin(self) -> bool:
        """Begin → whether to copy. From now on tensors of the user are touched, until `done`."""
        return self._first.acquire(blocking=False)

    def cancel(self) -> bool:
        """Cancel → whether nothing was touched yet; then nothing ever will be."""
        return self._first.acquire(blocking=False)


class Copier:
    """One world's copier; see the module. Its threads begin with the first group and end with the last one.

    Args:
        device: index of the CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._users = 0
        self._cupy: Any = None
        self._ways: list[CopyWay] = []

    def use(self) -> None:
        """Count a group that uses the copier."""
        self._users += 1

    def leave(self) -> None:
        """Count a group out. Does not wait: a thread ends after what it was given."""
        self._users -= 1
        if not self._users:
            ways, self._ways = self._ways, []
            for way in ways:
                way.end()

    async def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect with the device: the first in a process to do that may wait for it for a second."""
        if not self._ways:
            self._ways = [CopyWay(self._device, to_host) for to_host in (True, False)]
            for way in self._ways:
                self._cupy = await way.open(loop)

    def marks(self, operation: Operation) -> list[Any]:
        """Events at what the caller has given its streams until now."""
        cupy = self._cupy
        return [mark(cupy, self._device, stream) for stream in caller_streams(cupy, arrays_of(operation))]

    def pinned(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Memory of the host that the device reaches by itself. New one takes milliseconds: off the loop."""
        nbytes = count * dtype.itemsize
        if not nbytes:
            return np.empty(0, dtype)
        memory = self._cupy.cuda.alloc_pinned_memory(room(nbytes))
        made: Array = np.frombuffer(memory, np.uint8, nbytes).view(dtype)  # it keeps the memory
        return made

    def move(self, transfer: Transfer, to_host: bool) -> None:
        """Copy from the device to the host, or back."""
        self._ways[0 if to_host else 1].submit(transfer)


def room(nbytes: int) -> int:
    """The bytes to ask CuPy for: it keeps what is given back by size, for ever, so there are few sizes."""
    step = max(512, (1 << nbytes.bit_length()) // 16)
    return -(-nbytes // step) * step


class CopyWay:
    """One direction.

    Args:
        device: index of the CUDA device.
        to_host: from the device, else to it.
    """

    def __init__(self, device: int, to_host: bool) -> None:
        self._device = device
        self._to_host = to_host
        self._cupy: Any = None
        self._stream: Any = None
        self._thread = Worker(f"aiodist-copy-{'out' if to_host else 'in'}-{device}")

    async def open(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Make the stream; gives the module `cupy`."""
        opened: asyncio.Future[Any] = loop.create_future()
        self._thread.submit(partial(fulfil, opened, self._open))
        return await opened

    def submit(self, transfer: Transfer) -> None:
        """Copy, after all that was submitted before."""
        self._thread.submit(partial(self._run, transfer))

    def end(self) -> None:
        """End the thread, after all that was submitted."""
        self._thread.end()

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> Any:
        try:
            self._cupy = load()
            self._cupy.cuda.Device(self._device).use()
            self._stream = make_stream(self._cupy)
            kernels.load(self._cupy)
        except BackendUnavailable:
            raise
        except Exception as error:
            raise BackendUnavailable(f"cuda:{self._device} cannot be used ({error})", hint=_HINT) from error
        return self._cupy

    def _run(self, transfer: Transfer) -> None:
        error: Exception | None = None
        try:
            pairs = transfer.pairs()
            if pairs and transfer.marks:
                for event in transfer.marks:
                    after(self._cupy, self._stream.ptr, event)
                blocking_mark(self._cupy, self._stream).synchronize()
            if not transfer.begin():
                return
            if pairs:
                self._copy(pairs)
        except Exception as raised:
            error = raised
        transfer.done(error)

    def _copy(self, pairs: Pairs) -> None:
        with self._stream:
            try:
                for on_device, on_host in pairs:
                    self._copy_one(on_device, on_host)
            finally:
                # Also where one has failed: those before it may be under way.
                blocking_mark(self._cupy, self._stream).synchronize()

    def _copy_one(self, on_device: Array, on_host: Array) -> None:
        runtime, there, here = self._cupy.cuda.runtime, on_device, on_host.ctypes.data
        if not there.flags.c_contiguous:
            there = self._contiguous(on_device)
        if self._to_host:
            if there is not on_device:
                copy(self._cupy, there, on_device)
            kind = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(here, _address(there), there.nbytes, kind, self._stream.ptr)
        else:
            kind = runtime.memcpyHostToDevice
            runtime.memcpyAsync(_address(there), here, there.nbytes, kind, self._stream.ptr)
            if there is not on_device:
                copy(self._cupy, on_device, there)

    def _contiguous(self, like: Array) -> Array:
        """Memory of the device; the stream is the current one, so it is given away only after its use."""
        made: Array = allocate(self._cupy, self._device, like.size, like.dtype).reshape(like.shape)
        return made


def _address(array: Array) -> int:
    assert isinstance(array, DeviceArray)
    return array.pointer
