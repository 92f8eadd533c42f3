"""The handle that torch waits for.

torch's own ways of making one tell lies: a Work made from a future reports a failure as success to who waits
in C++, and a future's `set_exception` in Python is a value to C++. So the Work is a class of ours, and what
`get_future` gives is the child of another future, in which an error is one for both languages.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, Work

from aiodist.base.errors import AiodistError, UsageError
from aiodist.integrations.torch.arguments import as_given, seconds_of
from aiodist.integrations.torch.callbacks import InOrder, OrderedFuture, at_once
from aiodist.integrations.torch.versions import pass_over, takes_more
from aiodist.portal.loop_thread import Reply


@takes_more
class AiodistWork(Work):  # type: ignore[misc]
    """One operation, under way or ended.

    Args:
        reply: settled with the operation's result, or its error.
        outputs: the tensors in which torch looks for the result.
        what: the operation, for people.
        in_order: the group's, for a collective that the program itself has issued; None: callbacks of its
            future run whenever it ends.
        within: the group whose callback has issued the operation; '' where none has.
    """

    def __init__(
        self,
        reply: Reply,
        outputs: list[torch.Tensor],
        what: str,
        in_order: InOrder | None = None,
        within: str = "",
    ) -> None:
        super().__init__()
        self._in_order = in_order
        self._within = within
        self._reply = reply
        self._outputs = outputs
        self._what = what
        self._lock = threading.Lock()
        self._source: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._shown: OrderedFuture | None = None

    def wait(self, timeout: timedelta = timedelta(0), **newer: Any) -> bool:
        """Block until it has ended.

        Raises:
            DistBackendError: it failed. That is torch's error; its text names ours, which is its cause.
            UsageError: it could not begin.
            TimeoutError: the caller's patience is over. It goes on.
        """
        pass_over("wait", newer)
        limit = seconds_of(timeout)
        if not self._reply.wait(limit):
            raise TimeoutError(f"{self._what} has not ended within {limit:g} s; it goes on")
        if (error := self.exception()) is not None:
            raise error
        return True

    def get_future(self, **newer: Any) -> torch.futures.Future[Any]:
        """The future of the outputs, as a list. Its callbacks run in the order of the group's."""
        pass_over("get_future", newer)  # here, and not by `takes_more`: who calls is seen by the frame behind
        with self._lock:
            if self._future is None:
                self._source = torch.futures.Future()
                self._future = self._source.then(lambda source: source.value())
                if self._in_order is not None and not _asked_by_reducer():
                    self._shown = OrderedFuture(self._future, self._in_order)
                if self._reply.settled:  # C++ takes the value of one that it has waited for as it is here
                    self._complete()
                else:
                    self._reply.tell(once(lambda: at_once(self._complete, self._within)))
            return self._future if self._shown is None else self._shown

    def _complete(self) -> None:
        source, shown, outputs = self._source, self._shown, as_given(self._outputs)
        assert source is not None
        if (error := self.exception()) is None:
            source.set_result(outputs)
        else:
            source.set_exception(error)
        if shown is not None:
            shown.follow()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._reply.settled

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._reply.settled and self._reply.error is None

    def exception(self) -> BaseException | None:
        """The error that it failed with, as torch's; None where it has not, or not yet."""
        error = self._reply.error
        return error if error is None or isinstance(error, UsageError) else as_torchs(error)

    def result(self) -> list[torch.Tensor]:
        """The outputs; waits for them."""
        self.wait()
        return as_given(self._outputs)

    def synchronize(self) -> None:
        """torch's name for `wait`, on the host."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `synchronize`: what arrives has arrived when it returns."""
        self.wait()

    def source_rank(self) -> int:
        """The group rank of the sender, of a receive that has ended."""
        self.wait()
        found = self._reply.get()
        if type(found) is not int:
            raise AiodistError(f"{self._what} has no sender")
        return found

    _source_rank = source_rank

    def __repr__(self) -> str:
        state = "pending" if not self._reply.settled else "done" if self._reply.error is None else "failed"
        return f"<AiodistWork {self._what}, {state}>"


def _asked_by_reducer() -> bool:
    """Whether C++ has called, within a backward pass: it wants errors of C++, and adds no callbacks."""
    caller = sys._getframe(1).f_back  # None in a thread of autograd's own
    return caller is None or caller.f_code.co_name == "_engine_run_backward"


def as_torchs(error: BaseException) -> BaseException:
    """An error that programs catch which know torch's, with ours as its cause."""
    why = "the timeout is over: " if isinstance(error, TimeoutError) else ""
    made: BaseException = DistBackendError(f"{type(error).__name__}: {why}{error}")
    made.__cause__ = error
    return made


def once(function: Callable[[], object]) -> Callable[[], None]:
    """The function, called at most once, by whichever thread comes first; let go of then."""
    left = [function]

    def call() -> None:
        try:
            run = left.pop()
        except IndexError:
            return
        run()

    return call
