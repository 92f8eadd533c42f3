"""Streams: those that the tensors of an operation may wait for, and how one waits for another.

A stream is known by its raw pointer, an int, whichever library made it. Order between two streams is made
with events, so that the host waits for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from aiodist.backends.arrays.device import DeviceArray, torch_of
from aiodist.base.errors import UsageError

_HIGHEST = -100  # lower is sooner; the driver takes the highest that the device has


def caller_stream(cupy: Any, array: DeviceArray) -> int | None:
    """The stream on which the caller, in this thread and now, works on a tensor; None: none to wait for."""
    source = array.source
    if torch := torch_of(source):
        return int(torch.cuda.current_stream(array.cuda).cuda_stream)
    if not isinstance(source, cupy.ndarray):
        interface = getattr(source, "__cuda_array_interface__", None)
        if interface is not None and "stream" in interface:
            stream = interface["stream"]
            return None if stream is None else int(stream)
    return int(cupy.cuda.get_current_stream(array.cuda).ptr)


def caller_streams(cupy: Any, arrays: Iterable[DeviceArray]) -> set[int]:
    """The streams on which the caller works on several tensors."""
    found = {caller_stream(cupy, array) for array in arrays}
    return {stream for stream in found if stream is not None}


def current_streams(device: int) -> list[AbstractContextManager[Any]]:
    """The streams on which this thread works now on a device, CuPy's and torch's, as contexts: a thread that
    enters them, in this order, works on the same ones. For a thread that makes a call for another."""
    contexts: list[AbstractContextManager[Any]] = []
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None:  # its streams are used while their device is the current one
        contexts += [cupy.cuda.Device(device), cupy.cuda.get_current_stream(device)]
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # before, nothing of torch's can be under way
        contexts.append(torch.cuda.stream(torch.cuda.current_stream(device)))
    return contexts


def raw_stream(stream: Any) -> int:
    """The pointer of what a user passes for a stream: torch's, CuPy's, or the pointer itself."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for name in ("cuda_stream", "ptr"):  # torch, CuPy
        pointer = getattr(stream, name, None)
        if isinstance(pointer, int):
            return pointer
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise UsageError(f"{stream!r} is not a CUDA stream", hint="Pass a stream of CuPy or torch, or nothing")


def make_stream(cupy: Any) -> Any:
    """A stream for communication on the current device: it waits for no default stream, nor one for it."""
    stream = cupy.cuda.Stream
    if not hasattr(stream, "priority"):  # CuPy 13, whose streams complain when they are not made
        return stream(non_blocking=True)
    return stream(non_blocking=True, priority=_HIGHEST)


def mark(cupy: Any, device: int, stream: int) -> Any:
    """An event at what a stream has been given until now."""
    with cupy.cuda.Device(device):
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, stream)
    return event


def blocking_mark(cupy: Any, stream: Any) -> Any:
    """An event at what a CuPy stream has been given until now. Who waits for it sleeps in the driver, without
    the GIL."""
    event = cupy.cuda.Event(block=True, disable_timing=True)
    event.record(stream)
    return event


def after(cupy: Any, stream: int, event: Any) -> None:
    """Have what a stream is given from now on begin after an event."""
    cupy.cuda.runtime.streamWaitEvent(stream, event.ptr)
