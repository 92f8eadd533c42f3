"""Virtual time for many ranks in one process: each has an event loop, and one engine runs them all.

A rank's program runs in a thread of its own, unchanged. Where it starts its loop the thread rests, and the
engine, in the main thread, carries out the loops' callbacks in the order of their times. So one thread runs
at any moment, and the same program gives the same run. A rank that computes is busy: its loop does not turn
before it is through.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from time import thread_time
from typing import Any, TypeVarTuple

from aiodist.base.errors import AiodistError, GroupBroken, UsageError
from aiodist.net.tasks import settle

_Ts = TypeVarTuple("_Ts")

STACK = 1 << 20
"""Bytes of address space for each rank's stack; pages are taken when touched."""


class SimEnded(BaseException):
    """What unwinds the threads of ranks that are stopped."""


class StuckError(AiodistError):
    """Nothing can happen any more, and some ranks have not ended."""


class SimEngine:
    """The one queue of what is to happen.

    Args:
        measured: seconds that a rank is busy for each second of processor time that its code takes here; 0.0:
            none.

    Attributes:
        now: virtual seconds.
        over: everything is being stopped; failed: a rank's program has.
        events: how many have happened.
        tick: called now and then, for progress.
    """

    def __init__(self, measured: float = 0.0) -> None:
        self.now = 0.0
        self.over = self.failed = False
        self.events = 0
        self.tick: Callable[[], None] = _nothing
        self._measured = measured
        self._queue: list[tuple[float, int, RankLoop | None, asyncio.Handle]] = []
        self._number = 0
        self._ranks: list[RankThread] = []
        self._loops: list[RankLoop] = []

    def at(self, when: float, handle: asyncio.Handle, loop: RankLoop | None = None) -> None:
        """Have something happen.

        Args:
            when: seconds; not before now.
            handle: what.
            loop: whose rank has to be idle for it; None: of nobody.
        """
        self._number += 1
        heapq.heappush(self._queue, (max(when, self.now), self._number, loop, handle))

    def after_all(self, handle: asyncio.Handle) -> None:
        """Have something happen at the present time, after all that is to happen at it already."""
        self.at(self.now, handle)

    def enter(self, loop: RankLoop) -> None:
        """Note a rank's loop."""
        self._loops.append(loop)

    def add(self, thread: RankThread) -> None:
        """Have a rank begin."""
        self._ranks.append(thread)
        self.at(0.0, event(thread.go_on))

    def run(self) -> bool:
        """Carry out everything → whether all ranks have ended; else nothing can happen any more."""
        queue = self._queue
        set_running = asyncio._set_running_loop
        while queue and not self.failed:
            when, number, loop, handle = heapq.heappop(queue)
            if handle._cancelled:
                continue
            if loop is not None and loop.busy > when:
                heapq.heappush(queue, (loop.busy, number, loop, handle))
                continue
            self.now = when
            self.events += 1
            if not self.events & 4095:
                self.tick()
            if loop is None:
                handle._run()
                continue
            if loop.is_closed():
                continue
            began = thread_time() if self._measured else 0.0
            set_running(loop)
            try:
                handle._run()
            finally:
                set_running(None)
            if self._measured:
                loop.compute((thread_time() - began) * self._measured)
            loop.end_callback()
            if loop.stopping:
                loop.thread.go_on()
        return all(thread.ended for thread in self._ranks)

    def close(self) -> None:
        """Stop all ranks that have not ended, and their threads."""
        self.over = True
        for loop in self._loops:
            loop.give_up()
        for thread in self._ranks:
            while thread.begun and not thread.ended:
                thread.go_on()
        self._queue.clear()


class RankThread:
    """The thread of one rank.

    Args:
        engine: whose.
        program: what it does.
        context: that it does it in.

    Attributes:
        context: the same.
        begun, ended: whether it has.
        error: what the program raised.
    """

    def __init__(self, engine: SimEngine, program: Callable[[], object], context: Context) -> None:
        self._engine = engine
        self._program = program
        self.context = context
        self._ours, self._its = threading.Lock(), threading.Lock()
        self._ours.acquire()
        self._its.acquire()
        self.begun = self.ended = False
        self.error: BaseException | None = None

    def go_on(self) -> None:
        """Run until it rests or ends. Called by the engine."""
        if not self.begun:
            self.begun = True
            if self._engine.over:
                self.ended = True
                return
            before = threading.stack_size(STACK)
            try:
                threading.Thread(target=self._run, daemon=True, name="a simulated rank").start()
            except RuntimeError as error:
                self.ended = True
                raise AiodistError(
                    f"no more threads for ranks here ({error})",
                    hint="Raise the limit (ulimit -u), or simulate fewer",
                ) from None
            finally:
                threading.stack_size(before)
        else:
            self._its.release()
        self._ours.acquire()
        ended_well = isinstance(self.error, SystemExit) and not self.error.code
        if self.error is not None and not ended_well and not isinstance(self.error, GroupBroken):
            self._engine.failed = True  # what others see of it says less

    def _run(self) -> None:
        try:
            self.context.run(self._program)
        except SimEnded:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._ours.release()

    def yield_to_engine(self) -> None:
        """Have the engine go on. Called in this thread."""
        self._ours.release()
        self._its.acquire()
        if self._engine.over:
            raise SimEnded


class RankLoop(asyncio.BaseEventLoop):
    """The event loop of one rank, in virtual time.

    It has no sockets and no threads: what is to run in an executor runs at once, and ends when it would have.

    Attributes:
        thread: where its program runs.
        busy: until when the rank computes.
        stopping: it is to stop.
    """

    def __init__(self, engine: SimEngine, thread: RankThread) -> None:
        self._runs = False
        super().__init__()
        self._engine = engine
        self.thread = thread
        self.busy = 0.0
        engine.enter(self)
        self._ahead = 0.0  # seconds that the rank has computed in the present callback

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stopping)

    def time(self) -> float:
        """Virtual seconds, those of what is computed in the present callback included."""
        return max(self._engine.now, self.busy) + self._ahead

    def compute(self, seconds: float) -> None:
        """Be busy, from now on."""
        self._ahead += seconds

    def end_callback(self) -> None:
        """Note that the present callback is over."""
        if self._ahead:
            self.busy = max(self._engine.now, self.busy) + self._ahead
            self._ahead = 0.0

    # ── what is to happen ────────────────────────────────────────────────────────────────────────────

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._engine.at(self.time(), handle, self)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function soon, as `call_soon` does: one thread runs at a time."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        self._check_closed()  # type: ignore[attr-defined]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._engine.at(when, timer, self)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the engine passes over it."""

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], Any], *args: *_Ts) -> asyncio.Future[Any]:
        """Run a function here and now; its future ends after the time that it took; nobody is busy."""
        future: asyncio.Future[Any] = self.create_future()
        ahead, began = self._ahead, thread_time()
        try:
            end: Callable[[], object] = partial(settle, future, func(*args))
        except Exception as error:
            end = partial(settle, future, None, error)
        took = (self._ahead - ahead) + (thread_time() - began) * self._engine._measured
        self._ahead = ahead
        self.call_at(self.time() + took, end)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As asyncio's; nothing is said of what is left when everything is being stopped."""
        if not self._engine.over:
            super().call_exception_handler(context)

    def give_up(self) -> None:
        """Unwind the coroutines of all tasks, as the rank: nothing awaits them any more."""
        if self.is_closed():
            return
        asyncio._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                coroutine = task.get_coro()
                if coroutine is not None:
                    # What a program's own clean-up raises, or awaits, means nothing now.
                    with contextlib.suppress(BaseException):
                        self.thread.context.copy().run(coroutine.close)
        finally:
            asyncio._set_running_loop(None)

    # ── what there is not ──

    async def _refuse(self, *args: Any, **more: Any) -> Any:
        raise UsageError(
            "asyncio's connections, servers and processes cannot be simulated",
            hint="Simulate a program that talks through aiodist alone",
        )

    create_connection = create_server = create_datagram_endpoint = create_unix_connection = _refuse
    subprocess_exec = subprocess_shell = _refuse

    # ── running ──────────────────────────────────────────────────────────────────────────────────────

    def is_running(self) -> bool:
        """Whether it runs."""
        return self._runs

    def run_forever(self) -> None:
        """Let the engine carry out the callbacks, until `stop`."""
        self._check_closed()  # type: ignore[attr-defined]
        if self._engine.over:
            raise SimEnded
        self._runs = True
        self.end_callback()
        try:
            self.thread.yield_to_engine()
        finally:
            self._runs = False
            self._stopping = False


def _nothing() -> None:
    pass


_NOBODY = contextvars.Context()


class _Nobody:
    """What stands for a loop in handles that belong to none."""

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]


NOBODY: Any = _Nobody()
"""The loop of handles that belong to no rank: what they raise ends the simulation."""


def event(callback: Callable[[*_Ts], object], *args: *_Ts) -> asyncio.Handle:
    """Something that is to happen to no rank."""
    return asyncio.Handle(callback, args, NOBODY, _NOBODY)


def handle(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> asyncio.Handle:
    """Something that is to happen to a rank."""
    return asyncio.Handle(callback, (), loop, _NOBODY)
