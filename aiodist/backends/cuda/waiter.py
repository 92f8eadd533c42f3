"""The thread that waits for the events of one stream.

It blocks in the driver, without the GIL and without polling, and then calls back. No callback of
the driver's is used: those hold its lock while they wait for the GIL, and a thread that has the GIL may wait
for that lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.backends.threads import Worker

Then = Callable[[Exception | None], None]


class EventWaiter:
    """The waiter for the events of one stream; see the module.

    Args:
        name: of the thread.
        use: called in the thread first: chooses its device.
    """

    def __init__(self, name: str, use: Callable[[], object]) -> None:
        self._failed: Exception | None = None
        self._thread = Worker(name)
        self._thread.submit(partial(self._begin, use))

    def watch(self, event: Any, then: Then, keep: Any) -> None:
        """Wait for an event, after those before it.

        Args:
            event: one that blocks: `cupy.cuda.Event(block=True, disable_timing=True)`.
            then: called in the thread, with None or with what the device failed with.
            keep: referenced until then: the memory that the device works on.
        """
        self._thread.submit(partial(self._wait, event, then, keep))

    def close(self) -> None:
        """End the thread, when it has waited for all that it was given."""
        self._thread.end()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread → whether it has come."""
        return self._thread.join(seconds)

    def _begin(self, use: Callable[[], object]) -> None:
        self._failed = _error_of(use)

    def _wait(self, event: Any, then: Then, keep: Any) -> None:
        then(self._failed or _error_of(event.synchronize))


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
