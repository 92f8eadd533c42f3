"""The tasks of an event loop as lines: what each awaits, and which task waits for which."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from asyncio import Future, Task
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from aiodist.backends.work import Work
from aiodist.base.callers import Whose, whose
from aiodist.observe.frames import FrameCall

MOST_TASKS = 200  # that are shown; the rest is counted
MOST_CALLS = 40  # of one task
_TRIES = 20  # to list the tasks, while the loop makes others
_AWAITS = ("_await_on", "_as_step")  # of a Work
_FAR = 8  # futures between a task and one that awaits it, such as a gather in a gather


def task_lines(loop: asyncio.AbstractEventLoop) -> tuple[str, ...]:
    """The tasks of a loop as lines, from any thread; a task is indented below the one that awaits it. This
    library's own are left out.

    What the loop does meanwhile may make a line of it wrong; the others stand.
    """
    running = _running(loop)
    tasks = sorted(filter(_is_programs, _tasks(loop)), key=lambda task: (task is not running, *_order(task)))
    tree = _Tree(tasks[:MOST_TASKS], running)
    lines = list(tree.lines())
    if len(tasks) > MOST_TASKS:
        lines.append(f"… and {len(tasks) - MOST_TASKS} tasks more")
    return tuple(lines)


def _tasks(loop: asyncio.AbstractEventLoop) -> set[Task[Any]]:
    for _ in range(_TRIES):
        try:
            return asyncio.all_tasks(loop)
        except RuntimeError:  # the set has changed while it was read
            continue
    return set()


def _is_programs(task: Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not hasattr(coroutine, "cr_code") or _outermost(coroutine) is not None


def _outermost(coroutine: object) -> object:
    """The coroutine itself, or the outermost of the program's in it if it is this library's; None where
    there is none, as in the library's own tasks.

    What a program is run by, such as `run`, has a coroutine around the program's.
    """
    of_library = False
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None)
        owner = None if code is None else whose(code.co_filename)
        if owner is Whose.program or (owner not in (None, Whose.ours) and not of_library):
            return coroutine
        of_library = of_library or owner is Whose.ours
        _, coroutine = _step(coroutine)
    return None


def _order(task: Task[Any]) -> tuple[int, str]:
    """Those with names of their own come last; asyncio numbers the others as they are made."""
    name = task.get_name()
    number = name.removeprefix("Task-")
    return (int(number), "") if number.isascii() and number.isdigit() else (sys.maxsize, name)


def _running(loop: asyncio.AbstractEventLoop) -> Task[Any] | None:
    try:
        return asyncio.current_task(loop)
    except RuntimeError:
        return None


class _Tree:
    """Who awaits whom.

    Args:
        tasks: all that are shown, in the order of the lines.
        running: the one whose turn it is.
    """

    def __init__(self, tasks: list[Task[Any]], running: Task[Any] | None) -> None:
        self._tasks = tasks
        self._running = running
        self._shown: set[Task[Any]] = set()
        waits = {id(future): task for task in tasks if (future := _awaited(task)) is not None}
        self._below: dict[Task[Any], list[Task[Any]]] = {task: [] for task in tasks}
        self._inner = set()
        for task in tasks:
            above = [*(waits.get(id(future)) for future in _leading_from(task)), _group_parent(task)]
            for one in dict.fromkeys(above):
                if one in self._below and one is not task:
                    self._below[one].append(task)
                    self._inner.add(task)

    def lines(self) -> Iterator[str]:
        """All tasks: those that nobody awaits, then what is left, which await each other in a circle."""
        for task in self._tasks:
            if task not in self._inner:
                yield from self._of(task, "")
        for task in self._tasks:
            if task not in self._shown:
                yield from self._of(task, "")

    def _of(self, task: Task[Any], indent: str) -> Iterator[str]:
        name = task.get_name()
        if task in self._shown:
            yield f"{indent}{name}: see above"
            return
        self._shown.add(task)
        coroutine = _outermost(task.get_coro()) or task.get_coro()
        yield f"{indent}{name}: {getattr(coroutine, '__qualname__', None) or type(coroutine).__name__}"
        calls, operation = _described(coroutine)
        if len(calls) > MOST_CALLS:
            yield f"{indent}  … and {len(calls) - MOST_CALLS} calls more"
        for line in calls[-MOST_CALLS:]:
            yield f"{indent}  {line}"
        yield f"{indent}  {operation if operation and task is not self._running else self._state(task)}"
        for below in self._below[task]:
            yield from self._of(below, f"{indent}    ")

    def _state(self, task: Task[Any]) -> str:
        if task is self._running:
            return "runs now"
        future = _awaited(task)
        if future is None:
            return "is due to run"
        if isinstance(future, Task):
            return f"awaits {future.get_name()}"
        return f"awaits a {type(future).__name__.lstrip('_')}"


def _awaited(task: Task[Any]) -> Future[Any] | None:
    """What a task waits for."""
    future: Future[Any] | None = getattr(task, "_fut_waiter", None)
    return future


def _described(coroutine: object) -> tuple[list[str], str]:
    """The calls that a coroutine is in, and the operation that it awaits; '' where that is none."""
    calls: list[str] = []
    if isinstance(coroutine, Work):  # the task was made of it
        return calls, f"awaits {_operation(coroutine)}"
    for frame in _chain(coroutine):
        awaited = frame.f_locals.get("self") if frame.f_code.co_name in _AWAITS else None
        if isinstance(awaited, Work):
            return calls, f"awaits {_operation(awaited)}"
        calls.append(str(FrameCall.of(frame)))
    return calls, ""


def _operation(work: Work[Any]) -> str:
    named = f"{work.op} #{work.seq}"
    if not work.call.message:
        return named
    peer = "anybody" if work.call.root < 0 else f"rank {work.call.root}"
    return f"{named} {'from' if work.op.startswith('recv') else 'to'} {peer}"


def _chain(coroutine: object) -> Iterator[FrameType]:
    """The frames that a coroutine is in, the outermost first, by what each awaits."""
    while coroutine is not None:
        frame, coroutine = _step(coroutine)
        if frame is not None:
            yield frame


def _step(awaited: object) -> tuple[FrameType | None, object]:
    """The frame of something that is awaited, and what it awaits itself."""
    for frame, inner in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(awaited, frame):
            return getattr(awaited, frame), getattr(awaited, inner)
    if type(awaited).__name__.startswith("async_generator_"):  # a step of one: it does not say of which
        return None, next((one for one in gc.get_referents(awaited) if hasattr(one, "ag_frame")), None)
    if type(awaited).__name__ == "coroutine_wrapper":
        return None, next((one for one in gc.get_referents(awaited) if hasattr(one, "cr_frame")), None)
    return None, None


def _leading_from(task: Task[Any]) -> list[Future[Any]]:
    """The futures that end by this task's end: itself, and those of what is around it, such as a gather."""
    found: list[Future[Any]] = [task]
    for future in found:
        for callback, _ in getattr(future, "_callbacks", None) or ():
            found += (one for one in _held_by(callback) if one not in found)
        if len(found) > _FAR:
            break
    return found


def _held_by(callback: Any) -> Iterator[Future[Any]]:
    """The futures that a callback's arguments, or its closure, refer to, but for tasks."""
    held = [*getattr(callback, "args", ())]
    for cell in getattr(callback, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    return (one for one in held if isinstance(one, Future) and not isinstance(one, Task))


def _group_parent(task: Task[Any]) -> Task[Any] | None:
    """The task whose TaskGroup this task belongs to."""
    callbacks: Iterable[tuple[Any, Any]] = getattr(task, "_callbacks", None) or ()
    for callback, _ in callbacks:
        group = getattr(callback, "__self__", None)
        if isinstance(group, asyncio.TaskGroup):
            parent: Task[Any] | None = getattr(group, "_parent_task", None)
            return parent
    return None
