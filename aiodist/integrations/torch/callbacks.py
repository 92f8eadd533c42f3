"""The order in which callbacks of futures run, and where what they issue goes.

Ranks must issue a group's operations in one order. A callback of a future runs when its operation has ended,
which is at another moment on each rank; so what it issues would come between the program's own operations at
another place on each. Therefore the callbacks of a group's collectives run one after the other, in the order
in which their futures were asked for, which the program gives; and the collectives that they issue go to a
second group of the same ranks. Both groups then have one order on all ranks. (PowerSGD issues so, twice for
each bucket.)

A callback may wait for what it has issued. So the futures of that are completed by other threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

_THREADS = 64  # at most in which callbacks run at the same time

# Never the loop's thread: a callback that waits for an operation would wait for itself.
_threads = ThreadPoolExecutor(_THREADS, "aiodist torch")
_here = threading.local()


def origin() -> str:
    """The name of the group whose callback runs in this thread; '' where none does."""
    return getattr(_here, "origin", "")


def at_once(call: Callable[[], object], within: str = "") -> None:
    """Run a callback in a thread of its own.

    Args:
        within: the group whose callback has issued the operation; '' where none has.
    """
    _threads.submit(_call, call, within)


def _call(call: Callable[[], object], within: str) -> None:
    _here.origin = within
    try:
        call()
    finally:
        _here.origin = ""


class _Due(NamedTuple):
    wait: Callable[[], object]
    complete: Callable[[], object]


class InOrder:
    """The callbacks of one group's collectives.

    Args:
        name: of the group.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._due: deque[_Due] = deque()
        self._gate = threading.Lock()
        self._runs = False

    def add(self, wait: Callable[[], object], complete: Callable[[], object]) -> None:
        """Take a future on.

        Args:
            wait: returns when its operation has ended.
            complete: completes it, which runs its callbacks.
        """
        with self._gate:
            self._due.append(_Due(wait, complete))
            if self._runs:
                return
            self._runs = True
        _threads.submit(self._run)

    def _run(self) -> None:
        _here.origin = self._name
        try:
            while True:
                with self._gate:
                    if not self._due:
                        self._runs = False
                        return
                    due = self._due.popleft()
                due.wait()
                due.complete()
        finally:
            _here.origin = ""


class OrderedFuture(torch.futures.Future[Any]):  # type: ignore[misc]
    """A future whose callbacks run in its group's order, also those that come when it is complete already.

    Args:
        inner: the future itself, in which an error is one for C++, too.
        in_order: the group's.
    """

    def __init__(self, inner: torch.futures.Future[Any], in_order: InOrder) -> None:
        super().__init__()
        self._inner = inner
        self._in_order = in_order

    def then(self, callback: Callable[[Any], Any]) -> OrderedFuture:
        """Have a callback run with the complete future → the future of what it returns."""
        inner, start = self._inner, torch.futures.Future()
        result = OrderedFuture(start.then(lambda _: callback(inner)), self._in_order)

        def complete() -> None:
            start.set_result(None)  # runs the callback
            result.follow()

        self._in_order.add(self._ended, complete)
        return result

    def follow(self) -> None:
        """Complete it as the inner one is, for C++, which does not ask the inner one."""
        try:
            self.set_result(self._inner.value())
        except Exception as error:
            self.set_exception(error)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Have a callback run with the complete future."""
        self.then(callback)

    def _ended(self) -> None:
        with contextlib.suppress(Exception):  # callbacks find the error in it
            self._inner.wait()

    def wait(self) -> Any:
        """The value, once it is there; raises the error."""
        return self._inner.wait()

    def value(self) -> Any:
        """The value, of a complete one."""
        return self._inner.value()

    def done(self) -> bool:
        """Whether it is complete."""
        return bool(self._inner.done())
