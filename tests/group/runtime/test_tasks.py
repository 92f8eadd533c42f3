"""The tree of tasks: what each awaits, and below whom it stands."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

from aiodist.group.runtime import tasks
from aiodist.group.runtime.tasks import MOST_CALLS, task_lines

Coroutine = Callable[[asyncio.Event], Awaitable[None]]


async def leaf(event: asyncio.Event) -> None:
    await event.wait()


async def middle(event: asyncio.Event) -> None:
    await leaf(event)


async def steps(event: asyncio.Event) -> AsyncIterator[int]:
    await leaf(event)
    yield 1


async def iterating(event: asyncio.Event) -> None:
    async for _ in steps(event):
        pass


class Awaited:
    """Awaited by the means of a coroutine."""

    def __init__(self, event: asyncio.Event) -> None:
        self.event = event

    def __await__(self) -> Generator[Any, None, None]:
        return leaf(self.event).__await__()


async def wrapping(event: asyncio.Event) -> None:
    await Awaited(event)


async def gathering(event: asyncio.Event) -> None:
    await asyncio.gather(middle(event), asyncio.gather(leaf(event), iterating(event)))


async def grouping(event: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(middle(event))


async def waiting(event: asyncio.Event) -> None:
    await asyncio.wait([asyncio.create_task(leaf(event))])


async def limiting(event: asyncio.Event) -> None:
    await asyncio.wait_for(leaf(event), 1000)


async def shielding(event: asyncio.Event) -> None:
    await asyncio.shield(leaf(event))


async def awaiting(event: asyncio.Event) -> None:
    await asyncio.create_task(leaf(event), name="another")


async def lines_of(program: Coroutine) -> list[str]:
    """The lines of a task that runs this, in a thread; without their numbers, which say nothing here."""
    event = asyncio.Event()
    task = asyncio.ensure_future(program(event))
    task.set_name("it")
    for _ in range(5):
        await asyncio.sleep(0)
    found = await asyncio.to_thread(task_lines, asyncio.get_running_loop())
    event.set()
    await task
    start = next(number for number, line in enumerate(found) if line.startswith("it: "))
    return [re.sub(r":\d+ in", " in", line) for line in found[start:]]


def test_what_a_task_awaits() -> None:
    assert asyncio.run(lines_of(middle)) == [
        "it: middle",
        *(f"  tests/group/runtime/test_tasks.py in {name}" for name in ("middle", "leaf")),
        "  asyncio/locks.py in wait",
        "  awaits a Future",
    ]


@pytest.mark.parametrize("program", [iterating, wrapping])
def test_what_hides_what_it_awaits(program: Coroutine) -> None:
    lines = asyncio.run(lines_of(program))
    assert "  tests/group/runtime/test_tasks.py in leaf" in lines
    assert lines[-1] == "  awaits a Future"


@pytest.mark.parametrize(
    ("program", "below"),
    [
        (gathering, ["middle", "leaf", "iterating"]),
        (grouping, ["middle"]),
        (waiting, ["leaf"]),
        (shielding, ["leaf"]),
        (awaiting, ["leaf"]),
    ],
)
def test_tasks_stand_below_who_awaits_them(program: Coroutine, below: list[str]) -> None:
    lines = asyncio.run(lines_of(program))
    heads = [line.rpartition(": ")[2] for line in lines if re.match("    [^ ]", line)]
    assert sorted(heads) == sorted(below)
    if program is awaiting:
        assert "  awaits another" in lines


def test_a_limit_of_time_hides_nothing() -> None:
    assert any(line.endswith("in leaf") for line in asyncio.run(lines_of(limiting)))


async def test_those_that_await_each_other_are_shown() -> None:
    others: list[asyncio.Task[None]] = []

    async def circle(other: int) -> None:
        await asyncio.sleep(0)
        await asyncio.wait([others[other]])  # which can be cancelled

    others += [asyncio.create_task(circle(1), name="first"), asyncio.create_task(circle(0), name="second")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = task_lines(asyncio.get_running_loop())
    heads = [line for line in found if re.search("first:|second:", line)]
    assert [line.strip().partition(":")[0] for line in heads] == ["first", "second", "first"]
    assert heads[-1].endswith("first: see above")
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_many_tasks_and_deep_ones_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    event = asyncio.Event()

    async def deep(depth: int) -> None:
        await (deep(depth - 1) if depth else leaf(event))

    monkeypatch.setattr(tasks, "MOST_TASKS", 2)
    made = [asyncio.create_task(deep(MOST_CALLS), name=f"deep {number}") for number in range(3)]
    await asyncio.sleep(0)
    found = task_lines(asyncio.get_running_loop())
    assert found[-1] == "… and 2 tasks more"
    assert "  … and 3 calls more" in found
    assert "  runs now" in found
    assert sum(line.endswith("in deep") for line in found) == MOST_CALLS - 2  # the innermost are kept
    event.set()
    await asyncio.gather(*made)


async def test_one_that_is_due() -> None:
    task = asyncio.create_task(asyncio.sleep(0), name="due")
    assert "  is due to run" in task_lines(asyncio.get_running_loop())
    await task


def test_a_loop_that_is_closed_and_one_that_never_ran() -> None:
    loop = asyncio.new_event_loop()
    assert task_lines(loop) == ()
    loop.close()
    assert task_lines(loop) == ()
