"""The place of an operation on the device: what it waits for, and what can wait for it.

the caller's streams ── marks ─▶ the operation, on a communication stream ── event ─▶ synchronize(stream)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from aiodist.backends.arrays.device import DeviceArray
from aiodist.backends.base import Operation, arrays_in
from aiodist.backends.cuda.streams import after, caller_stream, caller_streams, mark, raw_stream
from aiodist.base.errors import GroupBroken, UsageError

LAUNCHING = 5.0
"""Seconds that `synchronize` waits for a collective that was given to the launch thread, which is normally a
few µs away. What takes turns of the loop before, as messages do, is not waited for."""


class DeviceCompletion:
    """`Work._completion` of an operation on a CUDA device. Made in the user's call.

    Args:
        cupy: the module.
        device: index of the device.
        arrays: what the operation reads and writes.

    Attributes:
        patience: seconds that `synchronize` waits for the launch: none before it is under way by itself.
        launched: told once, when the launch has ended: the event that ends the operation, or None.
    """

    def __init__(self, cupy: Any, device: int, arrays: Sequence[DeviceArray]) -> None:
        self._cupy = cupy
        self._device = device
        self._first = arrays[0]
        self.patience = 0.0
        self._marks = [mark(cupy, device, stream) for stream in caller_streams(cupy, arrays)]
        self.launched: Future[Any] = Future()

    def wait_for_caller(self, stream: int) -> None:
        """Have a stream wait for what the caller had given its own streams before the call."""
        for event in self._marks:
            after(self._cupy, stream, event)

    def synchronize(self, stream: Any = None) -> None:
        """Have a stream wait for the operation; see `Work.synchronize`."""
        raw = caller_stream(self._cupy, self._first) if stream is None else raw_stream(stream)
        event = event_of(self.launched, self.patience)
        with self._cupy.cuda.Device(self._device):  # 0 is the default stream of the current one
            after(self._cupy, raw or 0, event)


def event_of(launched: Future[Any], seconds: float) -> Any:
    """The event that ends an operation.

    Raises:
        UsageError: it was not launched within some seconds. GroupBroken: it never will be.
    """
    try:
        event = launched.result(seconds)
    except TimeoutError:
        raise UsageError(
            "the operation is not launched yet: that waits for one before it, or for the peer",
            hint="Write `await work`",
        ) from None
    if event is None:
        raise GroupBroken("the operation was not launched")
    return event


def arrays_of(operation: Operation) -> list[DeviceArray]:
    """The arrays that an operation reads and writes."""
    source, target = operation.source, operation.target
    return [*arrays_in(source), *arrays_in(None if target is source else target)]
