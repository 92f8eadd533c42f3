"""A loop whose clock jumps: simulated seconds cost nothing, and the same seed gives the same run."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

_NOBODYS = Context()  # timers have contexts of their own


class SimulationStuck(RuntimeError):
    """Nothing is ready and no timer is set: in real time the program would wait for ever.

    Its text lists the tasks: at which line each is, and what it waits for.
    """


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never sleeps: where nothing is ready it moves the clock to the next timer."""

    now = 0.0
    tasks: Callable[[], tuple[str, ...]] = tuple  # who waits for what, as lines

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise SimulationStuck("\n".join(["nothing is ready and no timer is set", *self.tasks()]))
        self.now += max(timeout, 0.0)
        return []


class _Timer(asyncio.TimerHandle):
    """A timer among those of its instant."""

    def mark(self, *, scheduled: bool) -> None:
        """Set asyncio's own mark: a timer that bears it tells the loop when it is cancelled."""
        self._scheduled = scheduled


class _Due:
    """The timers of one instant, behind one timer of asyncio's."""

    __slots__ = ("alarm", "alive", "timers")

    def __init__(self, alarm: Any) -> None:
        self.alarm = alarm
        self.timers: list[_Timer] = []
        self.alive = 0  # not cancelled


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time. `time()` begins at 0 and moves only when nothing else can happen.

    Attributes:
        more_lines: says what `SimulationStuck` tells besides the tasks, as lines.
    """

    more_lines: Callable[[], Sequence[str]] = tuple

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        self._clock.tasks = self._lines
        self._due: dict[float, _Due] = {}
        super().__init__(self._clock)

    def _lines(self) -> tuple[str, ...]:
        from aiodist.group.runtime.tasks import task_lines  # only for what is stuck

        return (*task_lines(self), *self.more_lines())

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.now

    # Simulations set millions of timers, many for the same instant; a heap would compare them over and over.

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer as asyncio does; timers of one instant run in the order in which they were set."""
        due = self._due.get(when)
        if due is None:
            due = self._due[when] = _Due(super().call_at(when, self._run_due, when, context=_NOBODYS))
        timer = _Timer(when, callback, args, self, context)
        timer.mark(scheduled=True)
        due.timers.append(timer)
        due.alive += 1
        return cast("asyncio.TimerHandle", timer)

    def _run_due(self, when: float) -> None:
        timers = self._due.pop(when).timers
        for timer in timers:
            timer.mark(scheduled=False)
        for timer in timers:
            if not timer.cancelled():
                cast("Any", timer)._run()  # as asyncio's loops do

    def _timer_handle_cancelled(self, handle: Any) -> None:
        due = self._due.get(handle.when())
        if not handle._scheduled or due is None or due.alarm is handle:
            super()._timer_handle_cancelled(handle)  # type: ignore[misc]
            return
        due.alive -= 1
        if not due.alive:  # nothing is left to wait for
            del self._due[handle.when()]
            due.alarm.cancel()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], T], *args: *_Ts
    ) -> asyncio.Future[T]:
        """Run a function at once, in place of a thread: nothing knows when that would end in virtual time."""
        ended: asyncio.Future[T] = self.create_future()
        try:
            ended.set_result(func(*args))
        except Exception as error:
            ended.set_exception(error)
        return ended

    @property
    def _clock_resolution(self) -> float:
        # asyncio runs timers that are due before now + this. The real clock's nanosecond is lost beside half
        # a year of seconds, and a timer that is due exactly now would never run.
        return math.ulp(self._clock.now)

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None:
        """The resolution that asyncio believes; the virtual clock knows better."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time.

    Raises:
        SimulationStuck: it waits for something that will never happen.
    """
    __tracebackhide__ = True  # pytest shows the caller
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    except SimulationStuck as stuck:
        raise stuck.with_traceback(None) from None  # it tells all; the loop's own calls tell nothing
