"""Copies between a device and pinned memory: a thread and a stream for each direction, for all groups."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.cuda.arrays import allocate, copy
from aiodist.backends.cuda.completion import arrays_of
from aiodist.backends.cuda.library import load
from aiodist.backends.cuda.streams import after, caller_streams, make_stream, mark
from aiodist.backends.cuda.waiter import post
from aiodist.tensors.device import DeviceArray

Pairs = list[tuple[Array, Array]]
"""(on the device, on the host)."""

Copied = Callable[[Exception | None], None]


class Copier:
    """See the module. It is made when the first operation comes, and ends with the last group.

    Args:
        device: index of the CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._users = 0
        self._cupy: Any = None
        self._ways: list[Way] = []
        self.post = post

    def use(self) -> None:
        """A group will."""
        self._users += 1

    def leave(self) -> None:
        """A group will no more."""
        self._users -= 1
        if not self._users:
            ways, self._ways = self._ways, []
            for way in ways:
                way.close()

    def marks(self, operation: Operation) -> list[Any]:
        """Events at what the caller has given its streams until now: copies begin after them."""
        cupy = self._load()
        streams = caller_streams(cupy, arrays_of(operation))
        return [mark(cupy, self._device, stream) for stream in streams]

    def pinned(self, like: Array) -> Array:
        """Uninitialised memory of the host that the device reaches by itself, shaped like a tensor."""
        memory = self._load().cuda.alloc_pinned_memory(max(like.nbytes, 1))
        bare = np.frombuffer(memory, np.uint8, like.nbytes)  # it keeps the memory
        return bare.view(like.dtype).reshape(like.shape)

    def out(self, pairs: Pairs, marks: list[Any], copied: Copied) -> None:
        """Copy to the host, behind what the marks stand at."""
        self._ways[0].run(partial(_out, self._cupy, self._device, pairs), marks, copied)

    def into(self, pairs: Pairs, marks: list[Any], copied: Copied) -> None:
        """Copy to the device."""
        self._ways[1].run(partial(_into, self._cupy, self._device, pairs), marks, copied)

    def _load(self) -> Any:
        if self._cupy is None:
            self._cupy = load()
        if not self._ways:
            self._ways = [Way(self._cupy, self._device, name) for name in ("out", "in")]
        return self._cupy


class Way:
    """One direction.

    Args:
        cupy: the module.
        device: index of the device.
        name: of the direction.
    """

    def __init__(self, cupy: Any, device: int, name: str) -> None:
        self._cupy = cupy
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"aiodist-{name}")
        with cupy.cuda.Device(device):
            self._stream = make_stream(cupy)

    def run(self, job: Callable[[Any], None], marks: list[Any], copied: Copied) -> None:
        """Give the stream a job, and say when the device has done it."""
        self._thread.submit(self._run, job, marks, copied)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True)

    def _run(self, job: Callable[[Any], None], marks: list[Any], copied: Copied) -> None:
        cupy = self._cupy
        error: Exception | None = None
        try:
            with cupy.cuda.Device(self._device), self._stream:
                for event in marks:
                    after(cupy, self._stream.ptr, event)
                job(self._stream)
                # A blocking event: the thread sleeps in the driver, without the GIL.
                done = cupy.cuda.Event(block=True, disable_timing=True)
                done.record(self._stream)
                done.synchronize()
        except Exception as raised:
            error = raised
        copied(error)


def _out(cupy: Any, device: int, pairs: Pairs, stream: Any) -> None:
    runtime = cupy.cuda.runtime
    for on_device, on_host in pairs:
        source = on_device
        if not source.flags.c_contiguous:
            source = allocate(cupy, device, source.size, source.dtype).reshape(source.shape)
            copy(cupy, source, on_device)
        runtime.memcpyAsync(
            on_host.ctypes.data, _address(source), source.nbytes, runtime.memcpyDeviceToHost, stream.ptr
        )


def _into(cupy: Any, device: int, pairs: Pairs, stream: Any) -> None:
    runtime = cupy.cuda.runtime
    for on_device, on_host in pairs:
        target = on_device
        if not target.flags.c_contiguous:
            target = allocate(cupy, device, target.size, target.dtype).reshape(target.shape)
        runtime.memcpyAsync(
            _address(target), on_host.ctypes.data, target.nbytes, runtime.memcpyHostToDevice, stream.ptr
        )
        if target is not on_device:
            copy(cupy, on_device, target)


def _address(array: Array) -> int:
    assert isinstance(array, DeviceArray)
    return array.pointer
