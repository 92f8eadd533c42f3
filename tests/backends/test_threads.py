"""A worker runs jobs in their order, and lets go of each; a loop is told what a thread has done."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from aiodist.backends.threads import Worker, fulfil, post


def test_jobs_run_in_one_thread_in_the_order_of_their_submission() -> None:
    worker = Worker("working")
    ran: list[tuple[int, str]] = []
    first = threading.Event()

    def note(number: int) -> None:
        ran.append((number, threading.current_thread().name))

    def blocked() -> None:
        first.wait()
        note(-1)

    worker.submit(blocked)
    for number in range(100):
        worker.submit(partial(note, number))
    worker.end()
    assert not worker.join(0)
    first.set()
    assert worker.join()
    assert ran == [(number, "working") for number in range(-1, 100)]


def test_what_a_job_held_is_let_go_when_it_is_over() -> None:
    class Memory:
        pass

    worker, memory, over = Worker("working"), Memory(), threading.Event()
    held = weakref.ref(memory)
    worker.submit(partial(id, memory))  # type: ignore[arg-type]
    del memory
    worker.submit(over.set)
    over.wait()
    assert held() is None
    worker.end()
    assert worker.join()


@pytest.mark.parametrize("raises", [False, True])
async def test_a_future_has_what_a_job_returned_or_raised(raises: bool) -> None:
    def job() -> str:
        if raises:
            raise MemoryError("no room")
        return threading.current_thread().name

    worker = Worker("working")
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    worker.submit(partial(fulfil, future, job))
    if raises:
        with pytest.raises(MemoryError, match="no room"):
            await future
    else:
        assert await future == "working"
    worker.end()
    assert worker.join()


async def test_a_future_that_nobody_awaits_any_more_is_left_alone() -> None:
    worker, told = Worker("working"), asyncio.Event()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    future.cancel()
    worker.submit(partial(fulfil, future, _nothing))
    worker.submit(partial(post, loop, told.set))
    await told.wait()
    assert future.cancelled()
    worker.end()
    assert worker.join()


def test_a_closed_loop_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    called: list[Callable[[], None]] = []
    post(loop, called.append, _nothing)
    assert called == []


def _nothing() -> None: ...
