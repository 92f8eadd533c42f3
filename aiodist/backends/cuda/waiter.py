"""The thread that waits for the events of one stream.

It blocks in the driver, without the GIL and without polling, and then calls back. No callback of
the driver's is used: those hold its lock while they wait for the GIL, and a thread that has the GIL may wait
for that lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

Then = Callable[[Exception | None], None]


class Event(Protocol):
    """An event that can be waited for; `cupy.cuda.Event(block=True, disable_timing=True)`."""

    def synchronize(self) -> object: ...


class Waiter:
    """The waiter for the events of one stream; see the module.

    Args:
        name: of the thread.
        use: called in the thread first: chooses its device.
    """

    def __init__(self, name: str, use: Callable[[], object]) -> None:
        self._queue: SimpleQueue[tuple[Event, Then, Any] | None] = SimpleQueue()
        self._use = use
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def watch(self, event: Event, then: Then, keep: Any) -> None:
        """Wait for an event, after those before it.

        Args:
            then: called in the thread, with None or with what the device failed with.
            keep: referenced until then: the memory that the device works on.
        """
        self._queue.put((event, then, keep))

    def close(self) -> None:
        """End the thread, when it has waited for all that it was given."""
        self._queue.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread → whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failed: Exception | None = None
        try:
            self._use()
        except Exception as error:
            failed = error
        while (item := self._queue.get()) is not None:
            event, then, keep = item
            then(failed or _wait(event))
            del item, event, then, keep  # not kept until the next one comes


def _wait(event: Event) -> Exception | None:
    try:
        event.synchronize()
    except Exception as error:
        return error
    return None


def post(loop: Any, callback: Callable[..., object], *arguments: Any) -> None:
    """Call on a loop, from any thread; nothing where the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
