"""The place of an operation on the device: what it waits for, and what can wait for it.

the caller's streams ── marks ─▶ the operation, on a communication stream ── event ─▶ synchronize(stream)
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from aiodist.backends.base import Operation
from aiodist.backends.cuda.streams import after, caller_stream, caller_streams, mark, raw_stream
from aiodist.errors import GroupBroken, UsageError
from aiodist.tensors.device import DeviceArray

LAUNCHING = 5.0
"""Seconds that `synchronize` waits for a collective that was given to the launch thread, which is normally a
few µs away. What takes turns of the loop before, as messages do, is not waited for."""


class Launched:
    """The end of an operation's launch, told once to those who wait: with its event or without."""

    def __init__(self) -> None:
        self._known = threading.Event()
        self._event: Any = None

    def set(self, event: Any) -> None:
        """Give the event that ends the operation; None: it was never launched."""
        self._event = event
        self._known.set()

    def get(self, seconds: float) -> Any:
        """The event.

        Raises:
            UsageError: there is none within some seconds. GroupBroken: there will be none.
        """
        if not self._known.wait(seconds):
            raise UsageError(
                "the operation is not launched yet: that waits for one before it, or for the peer",
                hint="Write `await work`",
            )
        if self._event is None:
            raise GroupBroken("the operation was not launched")
        return self._event


class Completion:
    """`Work._completion` of an operation on a CUDA device. Made in the user's call.

    Args:
        cupy: the module.
        device: index of the device.
        arrays: what the operation reads and writes.

    Attributes:
        patience: seconds that `synchronize` waits for the launch: none before it is under way by itself.
        launched: how the launch ended.
    """

    def __init__(self, cupy: Any, device: int, arrays: Sequence[DeviceArray]) -> None:
        self._cupy = cupy
        self._device = device
        self._first = arrays[0]
        self.patience = 0.0
        self._marks = [mark(cupy, device, stream) for stream in caller_streams(cupy, arrays)]
        self.launched = Launched()

    def wait_for_caller(self, stream: int) -> None:
        """Have a stream wait for what the caller had given its own streams before the call."""
        for event in self._marks:
            after(self._cupy, stream, event)

    def synchronize(self, stream: Any = None) -> None:
        """Have a stream wait for the operation; see `Work.synchronize`."""
        raw = caller_stream(self._cupy, self._first) if stream is None else raw_stream(stream)
        event = self.launched.get(self.patience)
        with self._cupy.cuda.Device(self._device):  # 0 is the default stream of the current one
            after(self._cupy, raw or 0, event)


def arrays_of(operation: Operation) -> list[DeviceArray]:
    """The arrays that an operation reads and writes."""
    source, target = operation.source, operation.target
    found: list[Any] = []
    for given in (source, None if target is source else target):
        if given is not None:
            found += given if isinstance(given, list) else [given]
    return found
