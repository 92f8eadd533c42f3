"""A lane: one communicator, the stream that its operations are on, and the thread that waits for them there.

A group has one lane for its collectives, and one for each peer and direction in which messages go: a message
that waits for its receiver holds up nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from aiodist.backends.cuda.streams import make_stream
from aiodist.backends.cuda.waiter import EventWaiter


class Lane:
    """One lane; see the module. Made in a thread whose current device is that of the group.

    Args:
        cupy: the module.
        device: index of the device.
        communicator: CuPy's; not in use elsewhere.
        name: of the thread.

    Attributes:
        connected: what members have exchanged on it, and are connected for.
        under_way: launches that were issued, and that the device may not be through with. Kept by
            `NcclDevice`.
    """

    def __init__(self, cupy: Any, device: int, communicator: Any, name: str) -> None:
        self.communicator = communicator
        self.connected: set[Hashable] = set()
        self.under_way = 0
        self.kept: list[object] = []  # what a launch that failed half-way may have given to the device
        self.stream = make_stream(cupy)
        self.waiter = EventWaiter(name, cupy.cuda.Device(device).use)
        self._dead = False
        self._inside = threading.Lock()  # by the thread that gives the communicator work, or connects it
        self._connecting = False
        self._asked = threading.Lock()  # while its state is asked for, or it is aborted

    @contextmanager
    def inside(self, connecting: bool = False) -> Iterator[Any]:
        """The communicator, for a call that gives it work. `abort`, which frees what the call works on, waits
        for its end, for a while.

        Args:
            connecting: the call may block until the other members make it; nothing is under way on the lane.

        Raises:
            ConnectionAbortedError: it is aborted.
        """
        with self._inside:
            if self._dead:
                raise ConnectionAbortedError("the communicator is aborted")
            self._connecting = connecting
            try:
                yield self.communicator
            finally:
                self._connecting = False

    def check(self, wait: bool = True) -> None:
        """Raise what NCCL has found by itself; nothing where the communicator is aborted.

        Args:
            wait: for an abort that is going on, which may take long; else nothing is found then.
        """
        if self._dead or not self._asked.acquire(blocking=wait):
            return
        try:
            if not self._dead:
                self.communicator.check_async_error()
        finally:
            self._asked.release()

    def abort(self, patience: float = 0.0) -> None:
        """Stop what is under way, on all of its kernels. May block.

        Args:
            patience: seconds for a call that another thread makes with the communicator. If that is not over
                then, it connects with members that do not come: it is let be, as nothing runs that could be
                stopped. Or it waits for the device, whose queue is full of what only an abort ends.
        """
        self._dead = True
        alone = self._inside.acquire(timeout=patience)
        try:
            if alone or not self._connecting:
                with self._asked:
                    self.communicator.abort()
        finally:
            if alone:
                self._inside.release()

    def close(self) -> None:
        """Note that no more will be launched."""
        self.waiter.close()

    def join(self, seconds: float) -> bool:
        """Wait until all that was launched is over → whether it is. After `close`."""
        return self.waiter.join(seconds)

    def destroy(self) -> None:
        """Give back what the communicator holds; nothing is under way. Blocks until peers do the same."""
        self.communicator.destroy()
