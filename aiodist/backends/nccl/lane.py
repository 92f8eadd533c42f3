"""A lane: one communicator, the stream that its operations are on, and the thread that waits for them there.

A group has one lane for its collectives, and one for each peer and direction in which messages go: a message
that waits for its receiver holds up nothing else.
"""

from __future__ import annotations

from typing import Any

from aiodist.backends.cuda.streams import make_stream
from aiodist.backends.cuda.waiter import Waiter


class Lane:
    """See the module. Made in a thread whose current device is that of the group.

    Args:
        cupy: the module.
        device: index of the device.
        communicator: CuPy's; not in use elsewhere.
        name: of the thread.
    """

    def __init__(self, cupy: Any, device: int, communicator: Any, name: str) -> None:
        self.communicator = communicator
        self.kept: list[object] = []  # what a launch that failed half-way may have given to the device
        self.stream = make_stream(cupy)
        self.waiter = Waiter(name, cupy.cuda.Device(device).use)

    def abort(self) -> None:
        """Stop what is under way on all of its kernels. May block."""
        self.communicator.abort()

    def close(self) -> None:
        """No more will be launched."""
        self.waiter.close()

    def join(self, seconds: float) -> bool:
        """Wait until all that was launched is over; whether it is. After `close`."""
        return self.waiter.join(seconds)
