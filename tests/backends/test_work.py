"""The handle of one operation: awaited any number of times, by anybody, and never cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.work import Failures, GroupState, Work
from aiodist.base.types import Call, Kind
from aiodist.net import turn
from tests.observe.recorder.made import a_track

GROUP = SimpleNamespace(name="world", epoch=0)


here: ContextVar[str] = ContextVar("here")


class Idle:
    """Polls for an operation that never comes by it."""

    def poll(self) -> None:
        pass


way = "long"


@pytest.fixture(autouse=True, params=["long", "short"])
def every_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to make one: with its own call; with one like it, a number, a result and a driver."""
    monkeypatch.setattr(f"{__name__}.way", request.param)


def make(held: bool = True, seq: int = 5, failures: Failures | None = None) -> Work[Any]:
    """A pending all_reduce on the running loop."""
    call = Call(Kind.all_reduce, seq, np.dtype(np.float32), (3,))
    issuer = GroupState(asyncio.get_running_loop(), a_track(), failures, lambda: GROUP, "world")
    if way == "short":
        return Work(issuer, call.numbered(0), held, Idle(), np.zeros(3, np.float32), seq)
    return Work(issuer, call, held)


async def turns(count: int = 3) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_result_many_times_before_and_after_it_is_done() -> None:
    work = make()
    waiting = [asyncio.create_task(work.wait()) for _ in range(3)]
    await turns()
    assert not work.done() and not work.is_completed() and not work.is_success()
    result = object()
    work._finish(result)
    assert await asyncio.gather(*waiting) == [result] * 3
    assert await work is result
    assert await work is result
    assert work.result() is result
    assert work.exception() is None
    assert work.done() and work.is_completed() and work.is_success()


async def test_facts() -> None:
    work = make()
    assert (work.op, work.seq, work.group) == ("all_reduce", 5, GROUP)
    assert repr(work) == "<Work all_reduce #5 pending>"
    work._finish(None)
    assert repr(work) == "<Work all_reduce #5 done>"
    assert not hasattr(work, "cancel")
    with pytest.raises(dist.UsageError, match="no stream"):
        work.synchronize()


async def test_an_await_that_is_refused_is_none() -> None:
    work = make(held=False)
    work._held_back = True
    with pytest.raises(dist.UsageError, match=r"Await it after the block"):
        await work
    assert not work._awaited
    work._awaited = True


async def test_callbacks_run_in_the_context_in_which_they_were_added() -> None:
    """Not in that of what ended the operation, which may be anybody's."""
    seen: list[str] = []
    work = make()
    here.set("mine")
    work.add_done_callback(lambda _: seen.append(here.get()))
    here.set("another's")
    work._finish(3)
    await asyncio.sleep(0)
    assert seen == ["mine"]


async def test_a_step_of_another_work_tells_nobody() -> None:
    failures = Failures()
    work = make(failures=failures)
    work._fail(dist.PeerLost([2], "gone"))
    with pytest.raises(dist.PeerLost):
        await work._as_step()
    assert failures
    with pytest.raises(dist.PeerLost):
        await work
    assert not failures


class Stands:
    """In the place of an operation on a device: notes which streams were to wait."""

    def __init__(self) -> None:
        self.streams: list[Any] = []

    def synchronize(self, stream: Any = None) -> None:
        self.streams.append(stream)


async def test_synchronize_makes_streams_wait_while_the_operation_is_under_way() -> None:
    work = make(held=False)
    stands = Stands()
    work._completes_by(stands)
    work._held_back = True
    with pytest.raises(dist.UsageError, match="coalesce"):
        work.synchronize()
    work._held_back = False
    work.synchronize()
    work.synchronize(17)
    assert stands.streams == [None, 17]
    work._finish(3)
    work.synchronize(18)  # the host has waited: no stream needs to
    assert stands.streams == [None, 17]
    del work  # synchronize counts as the await: no warning
    gc.collect()


async def test_synchronize_raises_what_the_operation_failed_with() -> None:
    work = make()
    stands = Stands()
    work._completes_by(stands)
    work._fail(dist.PeerLost([2], "gone"))
    with pytest.raises(dist.PeerLost, match="rank 2"):
        work.synchronize()
    assert stands.streams == []


async def test_one_awaiter_is_cancelled_and_the_others_go_on() -> None:
    work = make()
    first, second, third = (asyncio.create_task(work.wait()) for _ in range(3))
    await turns()
    second.cancel()
    await turns()
    assert second.cancelled()
    assert not work.done()
    work._finish(3)
    assert (await first, await third, await work) == (3, 3, 3)


async def test_awaiter_cancelled_in_the_turn_of_the_end() -> None:
    work = make()
    task = asyncio.create_task(work.wait())
    await turns()
    work._finish(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await work == 3


async def test_under_wait_for_shield_timeout_and_wait() -> None:
    work = make()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work.wait(), 0.001)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await work
    with pytest.raises(TimeoutError):
        await work.wait(timedelta(milliseconds=1))
    shielded = asyncio.shield(work.wait())
    await turns()
    assert not work.done()
    work._finish("here")
    assert await shielded == "here"
    assert await work.wait(1) == "here"
    assert await work.wait(timeout=1e-9) == "here"


async def test_patience_must_be_a_time() -> None:
    work = make()
    with pytest.raises(dist.UsageError, match="timeout must be"):
        await work.wait(0)
    work._finish(None)


async def test_asking_too_early() -> None:
    work = make()
    for ask in (work.result, work.exception):
        with pytest.raises(asyncio.InvalidStateError, match="all_reduce #5 has not ended yet"):
            ask()
    work._finish(None)


async def test_callbacks_run_on_the_loop_once_each_in_order() -> None:
    work = make()
    seen: list[Any] = []
    work.add_done_callback(lambda done: seen.append((1, done)))
    work.add_done_callback(lambda done: seen.append((2, done)))
    work._finish(None)
    assert not seen  # soon, not now
    await turns(1)
    assert seen == [(1, work), (2, work)]
    work.add_done_callback(lambda done: seen.append((3, done)))
    assert len(seen) == 2
    await turns(1)
    assert seen[2:] == [(3, work)]


async def test_callback_on_failure() -> None:
    work = make()
    seen: list[BaseException | None] = []
    work.add_done_callback(lambda done: seen.append(done.exception()))
    work._fail(dist.PeerLost([1], "gone"))
    await turns(1)
    assert isinstance(seen[0], dist.PeerLost)


async def test_failure_carries_operation_and_number_in_a_copy_for_each_work() -> None:
    error = dist.PeerLost([1], "process 9 ended")
    works = [make(seq=number) for number in (3, 4)]
    for work in works:
        work._fail(error)
    for work in works:
        for _ in range(2):
            with pytest.raises(dist.PeerLost) as caught:
                await work
            assert caught.value is not error
            assert (caught.value.op, caught.value.seq, caught.value.group) == (
                "all_reduce",
                work.seq,
                "world",
            )
            assert caught.value.ranks == (1,)
        assert work.exception() is caught.value
        assert work.done() and not work.is_success()
        assert "failed: lost rank 1" in repr(work)
    assert error.op == ""


async def test_failure_reaches_every_awaiter() -> None:
    work = make()
    tasks = [asyncio.create_task(work.wait()) for _ in range(3)]
    await turns()
    work._fail(dist.GroupAborted(0, "enough"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [dist.GroupAborted] * 3


async def test_traceback_does_not_grow_with_the_number_of_awaits() -> None:
    work = make()
    work._fail(dist.GroupAborted(0, "enough"))
    depths = []
    for _ in range(5):
        try:
            await work
        except dist.GroupAborted as error:
            depth, trace = 0, error.__traceback__
            while trace is not None:
                depth, trace = depth + 1, trace.tb_next
            depths.append(depth)
    assert len(set(depths)) == 1


async def test_only_the_first_end_counts() -> None:
    work = make()
    work._finish(1)
    work._fail(dist.PeerLost([1], "late"))
    work._finish(2)
    assert await work == 1
    other = make()
    other._fail(dist.PeerLost([1], "first"))
    other._finish(1)
    with pytest.raises(dist.PeerLost):
        await other


async def test_un_awaited_work_is_noted() -> None:
    work = make(held=False)
    work._finish(None)
    forgotten = work._issuer.forgotten
    del work
    gc.collect()
    assert forgotten.take() == {("all_reduce", "", 0): 1}


USES: list[Callable[[Work[Any]], Any]] = [
    lambda work: work.result(),
    lambda work: work.exception(),
    lambda work: work.add_done_callback(lambda _: None),
]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("use", range(len(USES)))
async def test_a_work_that_was_looked_at_is_not_forgotten(use: int, failed: bool) -> None:
    work = make(held=False)
    if failed:
        work._fail(dist.PeerLost([1], "gone"))
    else:
        work._finish(None)
    forgotten = work._issuer.forgotten
    with contextlib.suppress(dist.PeerLost):
        USES[use](work)
    await turns(1)
    del work
    gc.collect()
    assert not forgotten


async def test_an_await_yields_once_the_loop_has_not_turned_for_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    await asyncio.sleep(0)  # a turn that nobody has asked about
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: clock.now))
    work = make()
    work._finish(None)
    ran = 0

    def tick() -> None:
        nonlocal ran
        ran += 1

    asyncio.get_running_loop().call_soon(tick)
    for _ in range(10):  # 0.9 ms: nobody else gets a turn
        await work
        clock.now += 0.0001
    assert ran == 0
    clock.now += 0.0002
    await work
    assert ran == 1
    asyncio.get_running_loop().call_soon(tick)
    for _ in range(9):  # the loop has turned: the count begins anew
        await work
        clock.now += 0.0001
    assert ran == 1
    clock.now += 0.001
    await work
    assert ran == 2


async def test_an_await_yields_after_a_long_step_also_if_its_work_was_issued_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    await asyncio.sleep(0)
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: clock.now))
    first = make()
    first._finish(None)
    await first  # the turn has begun
    track = a_track()
    call = Call(Kind.all_reduce, 6, np.dtype(np.float32), (3,))
    noted = (track.sort_of(call), 6, 0, clock.now)
    work: Work[Any] = Work(GroupState(asyncio.get_running_loop(), track), call, False, noted=noted)
    work._driven_by(SimpleNamespace(poll=lambda: work._finish(7)))
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    clock.now += 0.0012  # the program computes
    assert await work == 7
    assert ran == [1]


async def test_endless_awaiting_of_finished_works_starves_nobody() -> None:
    work = make()
    work._finish(None)
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.002, stop.set)
    while not stop.is_set():
        await work


def test_other_errors_count_one_by_one_and_are_bounded() -> None:
    failures = Failures()
    first, second = dist.UsageError("first"), dist.UsageError("second")
    failures.note(first)
    failures.note(first)
    failures.note(second)
    failures.seen(first)
    assert failures
    assert failures.take() is second
    assert not failures and failures.take() is None
    for number in range(100):
        failures.note(dist.UsageError(str(number)))
    assert len(failures._unseen) == 16
    failures.forget()
    assert not failures
    failures.note(dist.GroupAborted(0, "later"))
    assert not failures
