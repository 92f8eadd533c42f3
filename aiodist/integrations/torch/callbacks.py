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

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")
_log = logging.getLogger("aiodist.torch")

_THREADS = (
    4096  # at most: callbacks may wait for others, so none may wait for a thread. Few are ever started.
)

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


def _call(call: Callable[[], T], within: str) -> T:
    before, _here.origin = origin(), within
    try:
        return call()
    finally:
        _here.origin = before


class _DueCallback(NamedTuple):
    future: torch.futures.Future[Any]
    complete: Callable[[], object]


class InOrder:
    """The callbacks of one group's collectives.

    Args:
        name: of the group.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._due: deque[_DueCallback] = deque()
        self._gate = threading.Lock()
        self._runs = False

    def add(self, future: torch.futures.Future[Any], complete: Callable[[], object]) -> None:
        """Take a callback on, behind those that were taken on before.

        Args:
            future: complete when the operation has ended.
            complete: runs the callback.
        """
        with self._gate:
            self._due.append(_DueCallback(future, complete))
        future.add_done_callback(lambda _: self._go_on())

    def _go_on(self) -> None:
        """Have a thread run callbacks if the first of them is due. No thread waits for one."""
        with self._gate:
            if self._runs or not self._due or not self._due[0].future.done():
                return
            self._runs = True
        _threads.submit(_call, self._run, self.name)

    def _run(self) -> None:
        while True:
            with self._gate:
                if not self._due or not self._due[0].future.done():
                    self._runs = False
                    return
                due = self._due.popleft()
            try:
                due.complete()
            except Exception:  # of a callback it is in the future; this is torch's own
                _log.exception("a callback of group %s could not run", self.name)


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
        inner, in_order = self._inner, self._in_order
        if origin() == in_order.name:  # asked for by a callback of the group, which may wait for this one
            made = inner.then(lambda done: _call(lambda: callback(done), in_order.name))
            result = OrderedFuture(made, in_order)
            made.add_done_callback(lambda _: result.follow())
            return result
        start: torch.futures.Future[Any] = torch.futures.Future()
        result = OrderedFuture(start.then(lambda _: callback(inner)), in_order)

        def complete() -> None:
            start.set_result(None)  # runs the callback
            result.follow()

        in_order.add(inner, complete)
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

    def wait(self) -> Any:
        """The value, once it is there; raises the error."""
        return self._inner.wait()

    def value(self) -> Any:
        """The value, of a complete one."""
        return self._inner.value()

    def done(self) -> bool:
        """Whether it is complete."""
        return bool(self._inner.done())
