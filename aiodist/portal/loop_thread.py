"""An event loop in a thread of its own, and how other threads ask it and wait for the answer."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - its exit hook must be registered before ours, see below
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from aiodist.backends.work import Work
from aiodist.base.errors import GroupClosed, UsageError
from aiodist.group.runtime.running import loop_factory

EXIT_PATIENCE = 10.0
"""Seconds for closing what was left open when the interpreter exits."""

SIGNAL_PERIOD = 0.5
"""Seconds between two looks at signals, for a thread that waits. See `Reply.wait`."""

# Python joins threads before it calls atexit functions, so one of those could not end the loop's thread. The
# threading module's own hook comes before that. Its functions run last in, first out: ours before the one
# after which concurrent.futures, which closing may need, refuses work. Where the hook is missing the thread
# is a daemon, and atexit does.
_exit_hook = getattr(threading, "_register_atexit", None)
_open: set[LoopThread] = set()


class Source(Protocol):
    """The object from which a task takes something that the next one may have instead: a mailbox, a stream,
    or the end of a training object's step."""

    def give_back(self, taken: Any, /) -> None:
        """Have it taken again, first of all."""

    def fail_again(self, error: BaseException, /) -> None:
        """Have an error raised again, first of all."""


class Question(Protocol):
    """A question by which a caller gets the outcome of a Work."""

    def take_back(self) -> None:
        """Note that the caller has not got it."""


class Reply:
    """The reply that comes back from the loop's thread, once.

    Each waiter brings a lock of its own, so Ctrl-C, which can strike between any two lines of the main
    thread, leaves none locked that the loop or another waiter needs. Waiting for a lock is one call, which a
    signal interrupts.

    Attributes:
        settled: whether it is there.
        error: what there is instead of a value.
        waited_for: a thread waits for it, or has.
        work: whose end settles it, for a thread that blocks; None: another awaitable's, or not issued yet.
        task: likewise, of another awaitable.
        taken_from: from which the task takes something; None: from nothing.
        question: what the call asks of a Work; None: nothing.
        left: the caller was interrupted, and gets nothing.
    """

    __slots__ = (
        *("_news", "_trace", "_value", "error", "left", "question", "settled", "taken_from", "task"),
        *("waited_for", "work"),
    )

    def __init__(self) -> None:
        self.settled = False
        self.error: BaseException | None = None
        self.waited_for = False
        self.work: Work[Any] | None = None
        self.task: asyncio.Future[Any] | None = None
        self.taken_from: Source | None = None
        self.question: Question | None = None
        self.left = False
        self._value: Any = None
        self._trace: TracebackType | None = None
        self._news: list[Callable[[], object]] = []

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Settle the reply, in the loop's thread; the first time counts."""
        if self.settled:
            return
        self._value = value
        self.error = error
        self._trace = None if error is None else error.__traceback__
        self.settled = True
        for tell in self._news:  # who comes later looks at `settled` after joining this list
            tell()

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread; False when `timeout` seconds have passed in vain."""
        if not self.settled:
            gate = threading.Lock()
            gate.acquire()
            self.waited_for = True
            self._news.append(gate.release)
            # A signal interrupts a wait that has begun. One that comes between the interpreter's last look
            # and the beginning of the wait does not, so no wait is long.
            end = math.inf if timeout is None else time.monotonic() + timeout
            left = math.inf if timeout is None else timeout
            while not self.settled and left > 0 and not gate.acquire(timeout=min(left, SIGNAL_PERIOD)):
                left = end - time.monotonic()
        return self.settled

    def tell(self, listener: Callable[[], object]) -> None:
        """Call a function when it is settled, in the loop's thread; at once, in this one, where it is.

        Both may happen where it is settled meanwhile.
        """
        self._news.append(listener)
        if self.settled:
            listener()

    def get(self) -> Any:
        """The value; raises the error. Only when settled."""
        if self.error is not None:
            try:
                raise self.error.with_traceback(self._trace)
            finally:
                del self  # the traceback holds this frame
        return self._value


class Failure:
    """The exit code 1 of a process whose program has ended well, and its groups have not.

    Python knows its exit code before it closes them. So this ends the process when nothing refers to it any
    more: as an attribute of `sys`, when all that the interpreter does as it exits is done.
    """

    def __init__(self) -> None:
        self._exit = os._exit  # modules are empty by then
        self._outputs = sys.stdout, sys.stderr

    def __del__(self) -> None:
        for output in self._outputs:
            try:
                output.flush()
            except BaseException:  # it may be closed, or None
                pass
        self._exit(1)


class LoopThread:
    """A thread that runs an event loop (uvloop where it is installed) until `stop`.

    Attributes:
        ended_by: the exception that has ended the loop, such as the SystemExit of a handler; None: none has.
    """

    def __init__(self) -> None:
        self.ended_by: BaseException | None = None
        self._pid = os.getpid()
        self._replies: set[Reply] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._ended = Reply()
        self._started = Reply()
        self._thread = threading.Thread(
            target=self._main, args=(self._started,), name="aiodist portal", daemon=_exit_hook is None
        )
        _open.add(self)
        self._thread.start()
        self._started.wait()
        self._started.get()

    # ── from other threads ───────────────────────────────────────────────────────────────────────────

    def inside(self) -> bool:
        """Whether this is the loop's thread, which must not wait for itself."""
        return threading.get_ident() == self._thread.ident

    def check_process(self) -> None:
        """Refuse a forked child, in which there is no loop."""
        if os.getpid() != self._pid:
            raise _of_the_parent()

    def _stay_behind(self) -> None:
        """Fail, in a forked child, the calls that wait: a signal handler may fork while its thread does."""
        for reply in list(self._replies):
            self.settle(reply, None, _of_the_parent())

    def has_ended(self) -> bool:
        """Whether the loop has, or is the parent process's."""
        return os.getpid() != self._pid or self._loop is None or self._loop.is_closed()

    def post(
        self, answer: Callable[[Reply], None], reply: Reply | None = None, *, anywhere: bool = False
    ) -> Reply:
        """Have the loop call `answer(reply)` soon; that, or what it starts, settles the reply.

        Args:
            reply: the caller's, which it knows whenever it is interrupted; None: a new one.
            anywhere: also on the loop, where nobody waits for the reply.

        Raises:
            GroupClosed: the loop has ended, or is the parent process's.
            UsageError: called on the loop itself.
        """
        self.check_process()
        if self.inside() and not anywhere:
            raise UsageError(
                "a blocking call on the portal's own loop would wait for itself",
                hint="Use the async methods there, or call from another thread",
            )
        known, reply = reply is not None, Reply() if reply is None else reply
        self._replies.add(reply)  # first: the end of the loop fails what is in here
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(partial(self._answer, answer, reply))
        except RuntimeError:  # the loop is closed
            self._replies.discard(reply)
            error = self._gone("the portal is closed")
            raise error from error.__cause__
        except BaseException:  # Ctrl-C: nobody waits for a new reply, and it may not have been posted
            if not known:
                self._replies.discard(reply)
            raise
        return reply

    def stop(self) -> None:
        """End the loop, cancelling what runs on it, and wait for the thread. May be repeated."""
        if os.getpid() != self._pid or self._loop is None or self._stop_asked is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_asked.set)
        self._ended.wait()
        self._thread.join()

    def told_end(self) -> GroupClosed | None:
        """The error, given once, that says by which exception the loop has ended; None: by none."""
        if self.ended_by is None or self not in _open:
            return None
        _open.discard(self)
        return self._gone()

    def closing(self) -> Coroutine[Any, Any, None] | None:
        """The coroutine to run before the loop ends with its process."""
        return None

    def end_with_process(self) -> bool:
        """Close within bounds, as the interpreter exits → whether that was the program's only failure."""
        if self._thread.ident is None:
            return False  # Ctrl-C struck before it began
        reply = Reply()
        error: BaseException | None = None
        try:
            self._started.wait()  # for which Ctrl-C may have kept the program from waiting
            self.post(self._close, reply)
            if not reply.wait(EXIT_PATIENCE):
                error = GroupClosed(
                    f"operations had not ended {EXIT_PATIENCE:g} s after the program, and were aborted",
                    hint="Close the group by `with` or `close()`: that waits for what is in flight",
                )
        except GroupClosed as closed:
            error = None if self.ended_by is None else closed
        except KeyboardInterrupt as interrupt:
            error = interrupt
        self.stop()  # cancels a close that is under way, which aborts
        error = error or reply.error
        if error is None or getattr(sys, "last_value", None) is not None:  # Python has told another one
            return False
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, None
        sys.excepthook(type(error), error, None)
        return True

    # ── in the loop's thread ─────────────────────────────────────────────────────────────────────────

    def watch(self, reply: Reply) -> None:
        """Fail the reply if the loop ends before it is settled."""
        self._replies.add(reply)

    def settle(self, reply: Reply, value: Any, error: BaseException | None = None) -> None:
        """Settle a reply."""
        self._replies.discard(reply)
        reply.settle(value, error)

    def start(
        self,
        coroutine: Awaitable[Any],
        done: Callable[[Any, BaseException | None], None],
        context: Context | None = None,
    ) -> asyncio.Future[Any]:
        """Run an awaitable as a task; `done` gets its result or its error."""
        if context is not None and asyncio.iscoroutine(coroutine):
            task: asyncio.Future[Any] = asyncio.get_running_loop().create_task(coroutine, context=context)
        else:
            task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_ended, done))
        return task

    def _task_ended(
        self, done: Callable[[Any, BaseException | None], None], task: asyncio.Future[Any]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            done(None, self._gone())
        else:
            error = task.exception()
            done(task.result() if error is None else None, error)

    def _answer(self, answer: Callable[[Reply], None], reply: Reply) -> None:
        try:
            answer(reply)
        except BaseException as error:
            self.settle(reply, None, error)

    def _close(self, reply: Reply) -> None:
        closing = self.closing()
        if closing is None:
            self.settle(reply, None)
        else:
            self.start(closing, partial(self.settle, reply))

    def _main(self, started: Reply) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(self._serve(started))
                except BaseException as error:
                    if started.settled:
                        self.ended_by = error  # before the tasks end, whose callers are told
                    raise
        except BaseException as error:
            if started.settled:
                raise
            started.settle(None, error)
        finally:
            if self.ended_by is None:  # else somebody has to be told
                _open.discard(self)
            for reply in list(self._replies):
                self.settle(reply, None, self._gone())
            self._ended.settle(None)

    def _gone(self, words: str = "the portal was closed before this had ended") -> GroupClosed:
        """The error of a call that the loop does not answer any more."""
        by = self.ended_by
        if by is None:
            return GroupClosed(words)
        error = GroupClosed(
            f"the portal's event loop was ended by {': '.join(filter(None, (type(by).__name__, str(by))))}",
            hint="A handler, callback or task on it has raised that, which ends a loop and not the process",
        )
        error.__cause__ = by
        return error

    async def _serve(self, started: Reply) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        started.settle(None)
        await self._stop_asked.wait()


def _of_the_parent() -> GroupClosed:
    return GroupClosed(
        "the portal belongs to the parent of this forked process",
        hint="Call init_process_group in the child",
    )


def _after_fork() -> None:
    for thread in list(_open):
        thread._stay_behind()


def _close_all() -> None:
    failed = [thread.end_with_process() for thread in list(_open) if thread._pid == os.getpid()]
    if any(failed):
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            raise SystemExit(1)  # which `multiprocessing` makes the exit code, and then ends at once
        vars(sys)["_aiodist_failure"] = Failure()  # of the private ones, which are cleared first


(_exit_hook or atexit.register)(_close_all)
os.register_at_fork(after_in_child=_after_fork)
