"""Receives that asyncio holds and never awaits, or whose await ends in another way: no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.levels import COSTLY, MORE, few

Make = Callable[[], "dist.Work[Any]"]


async def _told(awaitable: Awaitable[Any]) -> None:
    """Await what ends by a cancel, or because its time is over."""
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await awaitable


async def _cancelled(task: asyncio.Future[Any], turns: int = 0) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await _told(task)


async def wait_for_nothing(make: Make) -> None:
    await _told(asyncio.wait_for(make(), 0))


async def wait_for_less(make: Make) -> None:
    await _told(asyncio.wait_for(make(), -1.5))


async def wait_for_wait(make: Make) -> None:
    await _told(asyncio.wait_for(make().wait(), 0))


async def kept_error(make: Make) -> None:
    """The error's traceback keeps frames alive, and so what they hold."""
    try:
        await asyncio.wait_for(make(), 0)
    except TimeoutError as error:
        kept.append(error)


kept: list[BaseException] = []


async def future_cancelled(make: Make) -> None:
    await _cancelled(asyncio.ensure_future(make()))


async def task_cancelled(make: Make) -> None:
    await _cancelled(asyncio.create_task(make()))


async def task_of_wait_cancelled(make: Make) -> None:
    await _cancelled(asyncio.create_task(make().wait()))


async def task_of_wait_with_a_limit_cancelled(make: Make) -> None:
    await _cancelled(asyncio.create_task(make().wait(5)))


async def gathered(make: Make) -> None:
    await _cancelled(asyncio.gather(make(), asyncio.sleep(9)))


async def timeout_over(make: Make) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.gather(make())


async def timeout_at_before(make: Make) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout_at(loop.time() - 1):
            await asyncio.ensure_future(make())


async def failing_group(make: Make) -> None:
    with pytest.raises(BaseExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(make())
            tasks.create_task(make().wait())
            raise RuntimeError


async def waited(make: Make) -> None:
    _, pending = await asyncio.wait([asyncio.ensure_future(make())], timeout=0)
    (task,) = pending or [None]
    if task is not None:
        await _cancelled(task)


async def closed(make: Make) -> None:
    make().close()
    make().wait().close()


async def closed_task_group(make: Make) -> None:
    """Which refuses the task."""
    async with asyncio.TaskGroup() as tasks:
        pass
    work = make().wait()
    with pytest.raises(RuntimeError):
        tasks.create_task(work)
    work.close()


async def refused_wait(make: Make) -> None:
    """`deadline - now`, where the deadline has passed."""
    for late in (0, -1.5):
        with pytest.raises(dist.UsageError, match="positive number of seconds"):
            await make().wait(late)


UNBEGUN: list[Callable[[Make], Awaitable[None]]] = [
    *(wait_for_nothing, wait_for_less, wait_for_wait, kept_error, future_cancelled, task_cancelled),
    *(task_of_wait_cancelled, task_of_wait_with_a_limit_cancelled, gathered, timeout_over),
    *(timeout_at_before, failing_group, waited, closed, closed_task_group),
    refused_wait,
]


async def timeout_within(make: Make) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await make()


async def waits_shortly(make: Make) -> None:
    with pytest.raises(TimeoutError):
        await make().wait(0.01)


async def waits_shortly_and_keeps_the_error(make: Make) -> None:
    try:
        await make().wait(0.01)
    except TimeoutError as error:
        kept.append(error)


async def waits_shortly_in_a_task(make: Make) -> None:
    await _told(asyncio.create_task(make().wait(0.01)))


async def begun_task(make: Make) -> None:
    await _cancelled(asyncio.create_task(make()), 1)


async def begun_task_later(make: Make) -> None:
    await _cancelled(asyncio.ensure_future(make()), 9)


async def begun_wait(make: Make) -> None:
    await _cancelled(asyncio.create_task(make().wait()), 2)


async def begun_group(make: Make) -> None:
    with pytest.raises(BaseExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(make())
            tasks.create_task(make().wait())
            await asyncio.sleep(0.01)
            raise RuntimeError


async def ended_coroutine(make: Make) -> None:
    async def awaits() -> None:
        await make()

    coroutine = awaits()
    coroutine.send(None)
    coroutine.close()


async def thrown_at(make: Make) -> None:
    async def awaits() -> None:
        await make()

    coroutine = awaits()
    coroutine.send(None)
    with pytest.raises(ZeroDivisionError):
        coroutine.throw(ZeroDivisionError())


async def dropped_coroutine(make: Make) -> None:
    async def awaits() -> None:
        await make()

    coroutine = awaits()
    coroutine.send(None)
    del coroutine
    gc.collect()


async def collected_in_a_thread(make: Make) -> None:
    """The collector runs in whichever thread allocates, as in that of a watchdog."""

    async def awaits() -> None:
        await make()

    gc.disable()
    try:
        coroutine = awaits()
        coroutine.send(None)
        cycle: list[Any] = [coroutine]
        cycle.append(cycle)
        del coroutine, cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    finally:
        gc.enable()
    await asyncio.sleep(0)


async def generator(make: Make) -> None:
    async def messages() -> AsyncIterator[Any]:
        while True:
            yield await make()

    for limit in (0, 0.01):
        given = messages()
        await _told(asyncio.wait_for(anext(given), limit))
        await given.aclose()  # type: ignore[attr-defined]


BEGUN: list[Callable[[Make], Awaitable[None]]] = [
    *(timeout_within, waits_shortly, waits_shortly_and_keeps_the_error, waits_shortly_in_a_task, begun_task),
    *(begun_task_later, begun_wait, begun_group, ended_coroutine, thrown_at, dropped_coroutine, generator),
    collected_in_a_thread,
]

KINDS = ["object", "large object", "small", "large", "strided"]


class Box:
    """Receives of one kind: what they were given stays untouched, or has a whole message."""

    def __init__(self, pg: ProcessGroup, kind: str, anybody: bool) -> None:
        self.pg, self.kind, self.src = pg, kind, None if anybody else 1
        self.places: list[Any] = []

    def place(self) -> Any:
        shapes: dict[str, Any] = {"small": 3, "large": 40_000, "strided": (200, 40)}
        shape = shapes[self.kind]
        place = np.full(shape, -1.0)
        return place[::2] if self.kind == "strided" else place

    def make(self) -> dist.Work[Any]:
        """A receive to give up."""
        if "object" in self.kind:
            return self.pg.recv_object(self.src)
        self.places.append(self.place())
        return self.pg.recv(self.places[-1], self.src)

    def sent(self, number: int) -> Any:
        if "object" in self.kind:
            return [number] * (5000 if self.kind == "large object" else 3)
        return np.full(self.place().shape, float(number))

    async def send(self, number: int) -> None:
        data = self.sent(number)
        await (self.pg.send_object(data, 0) if "object" in self.kind else self.pg.send(data, 0))

    async def check(self, number: int) -> None:
        """The next message is that one."""
        if "object" in self.kind:
            assert await self.pg.recv_object(self.src) == self.sent(number)
        else:
            place = self.place()
            assert await self.pg.recv(place, self.src) == 1
            assert np.array_equal(place, self.sent(number))
        for place in self.places:
            assert (place == -1).all(), "written after it was given up"


def ways(which: list[Callable[[Make], Awaitable[None]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", which, ids=lambda way: way.__name__)


@ways(UNBEGUN + BEGUN)
@pytest.mark.parametrize("kind", few(KINDS, ["object", "large"]))
@pytest.mark.parametrize("anybody", few([False, True], [False]))
def test_a_receive_that_is_given_up_leaves_its_message(
    way: Callable[[Make], Awaitable[None]], kind: str, anybody: bool
) -> None:
    async def main(pg: ProcessGroup) -> None:
        box = Box(pg, kind, anybody)
        for number in range(3):
            await pg.barrier()
            if pg.rank:
                await pg.barrier()
                await box.send(number)
            else:
                await way(box.make)
                await pg.barrier()
                await box.check(number)

    run_virtual(run_cluster(2, main))
    kept.clear()


@ways([way for way in UNBEGUN if way is not waited])  # that is one turn, in which the message is received
@pytest.mark.parametrize("kind", few(KINDS, ["object", "large"]))
@pytest.mark.parametrize("anybody", few([False, True], [False]))
def test_a_message_that_is_here_stays_if_its_receive_never_begins(
    way: Callable[[Make], Awaitable[None]], kind: str, anybody: bool
) -> None:
    async def main(pg: ProcessGroup) -> None:
        box = Box(pg, kind, anybody)
        if pg.rank:
            for number in range(3):
                await box.send(number)
            return
        await asyncio.sleep(1)
        for number in range(3):
            await way(box.make)
            box.places.clear()  # they may have been written, before they were given up
            await box.check(number)

    run_virtual(run_cluster(2, main))
    kept.clear()


def test_a_receive_of_a_block_that_is_given_up_before_the_block_ends_never_begins() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank:
            await pg.send(np.full(3, 5.0), 0)
            return
        place, other = np.zeros(3), np.zeros(3)
        async with pg.coalesce():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pg.recv(place, 1), 0)
        await pg.recv(other, 1)
        assert not place.any() and (other == 5).all()

    run_virtual(run_cluster(2, main))


def test_a_block_whose_end_is_cancelled_takes_back_its_receives() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank:
            await asyncio.sleep(1)
            for number in (1.0, 2.0):
                await pg.send(np.full(3, number), 0)
            return
        places = np.zeros((2, 3))

        async def block() -> None:
            async with pg.coalesce():
                for place in places:
                    pg.recv(place, 1)

        await _cancelled(asyncio.create_task(block()), 5)
        for number in (1.0, 2.0):
            other = np.zeros(3)
            await pg.recv(other, 1)
            assert (other == number).all() and not places.any()

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("kind", few(KINDS, ["object", "large"]))
@pytest.mark.parametrize("come", [1, 2])
def test_a_block_whose_end_is_cancelled_loses_no_message_that_has_come(kind: str, come: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        box = Box(pg, kind, anybody=False)
        if pg.rank:
            for number in range(come):
                await box.send(number)
            await pg.barrier()
            await pg.barrier()
            for number in range(come, 4):
                await box.send(number)
            return

        async def block() -> None:
            async with pg.coalesce():
                for _ in range(3):
                    box.make()

        task = asyncio.create_task(block())
        await pg.barrier()
        await asyncio.sleep(1)
        await _cancelled(task)
        await pg.barrier()
        for place in box.places:
            place[...] = -1  # it is the program's again
        for number in range(4):
            await box.check(number)

    run_virtual(run_cluster(2, main))


def test_a_receive_of_a_block_that_a_task_holds_keeps_its_message_where_the_end_is_cancelled() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.send_object("first", 0)
            await pg.barrier()
            await pg.barrier()
            await pg.send_object("second", 0)
            return
        works: list[dist.Work[Any]] = []

        async def block() -> None:
            async with pg.coalesce():
                works.extend(pg.recv_object(1) for _ in range(2))

        task = asyncio.create_task(block())
        await pg.barrier()
        await asyncio.sleep(1)
        assert works[0].result() == "first"
        await _cancelled(task)
        await pg.barrier()
        assert works[0].result() == "first" and await pg.recv_object(1) == "second"

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("kind", few(KINDS, ["object", "large"]))
@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_the_receives_of_a_block_that_an_exception_leaves_are_taken_back(
    kind: str, cancelled: bool, begun: bool
) -> None:
    async def main(pg: ProcessGroup) -> None:
        box = Box(pg, kind, anybody=False)
        if pg.rank:
            await pg.barrier()
            await pg.barrier()
            for number in range(2):
                await box.send(number)
            return

        async def block() -> None:
            async with pg.coalesce():
                box.make()
                if begun:  # by a collective of another task
                    await asyncio.create_task(_barrier(pg))
                if not cancelled:
                    raise KeyError
                await asyncio.sleep(9)

        task = asyncio.create_task(block())
        await asyncio.sleep(1)
        if cancelled:
            await _cancelled(task)
        else:
            with pytest.raises(KeyError):
                await task
        await pg.barrier()
        if not begun:
            await pg.barrier()
        for number in range(2):
            await box.check(number)

    run_virtual(run_cluster(2, main))


async def _barrier(pg: ProcessGroup) -> None:
    await pg.barrier()


def test_a_receive_that_is_held_goes_on_whatever_becomes_of_an_await() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.barrier()
            await pg.send(np.full(3, 5.0), 0)
            return
        place = np.zeros(3)
        work = pg.recv(place, 1, async_op=True)
        for way in [*UNBEGUN, waits_shortly, begun_task, begun_wait, timeout_within, ended_coroutine]:
            await way(lambda: work)
        await pg.barrier()
        assert await work == 1 and (place == 5).all()

    run_virtual(run_cluster(2, main))
    kept.clear()


def test_a_work_that_two_tasks_are_made_of_is_held() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.barrier()
            await pg.send_object("here", 0)
            return
        work = pg.recv_object(1)
        first, second = asyncio.create_task(work), asyncio.ensure_future(work)
        await asyncio.sleep(0)
        await _cancelled(first)
        await pg.barrier()
        assert await second == await work == await asyncio.create_task(work) == "here"

    run_virtual(run_cluster(2, main))


WRAPS: dict[str, Callable[[Any], asyncio.Future[Any]]] = {
    "task": asyncio.create_task,
    "task of wait": lambda work: asyncio.create_task(work.wait(9)),
    "gather": lambda work: asyncio.gather(work),
}
if sys.version_info >= (3, 12):  # before, it gives a result that has just come, although it is cancelled
    WRAPS["wait_for"] = lambda work: asyncio.create_task(asyncio.wait_for(work, 9))


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("kind", ["object", "large object", "tensor", "large tensor"])
@pytest.mark.parametrize("turns", few(range(12), [0, 2, 7], MORE))
@pytest.mark.parametrize("from_me", [False, True])
def test_a_receive_that_follows_a_cancel_gets_the_next_message(
    wrap: str, kind: str, turns: int, from_me: bool
) -> None:
    """In the step of the cancel itself, whatever the await is doing then; the task is told later."""
    groups: dict[int, ProcessGroup] = {}
    size = 40_000 if "large" in kind else 3

    def send(number: int) -> dist.Work[None]:
        sender = groups[0 if from_me else 1]
        if "object" in kind:
            return sender.send_object([number] * size, 0, async_op=True)
        return sender.send(np.full(size, number), 0, async_op=True)

    async def once(pg: ProcessGroup, waits: bool, early: bool) -> None:
        places = []

        def make() -> dist.Work[Any]:
            if "object" in kind:
                return pg.recv_object(1 - from_me)
            places.append(np.full(size, -1))
            return pg.recv(places[-1], 1 - from_me)

        async def received(work: dist.Work[Any]) -> int:
            data = await work
            return int(data[0] if "object" in kind else places[next_place.pop(0)][0])

        old = WRAPS[wrap](make())
        if waits:
            await asyncio.sleep(1)
        elif wrap == "wait_for":
            await asyncio.sleep(0)  # else nobody has the Work, and nobody ever will: a forgotten await
        sends = [send(number) for number in range(2 * early)]
        for _ in range(turns):
            await asyncio.sleep(0)
        if not old.cancel():  # it has the first one
            next_place = [1]
            assert await received(make()) == 1 if early else 0
        else:
            next_place = [1, 2]
            works = [make(), make()]
            sends += [send(number) for number in range(2 * (not early))]
            got = [await received(work) for work in works]
            with pytest.raises(asyncio.CancelledError):
                await old
            assert got == [0, 1]
            assert early or all((place == -1).all() for place in places[:1])
        for one in sends:
            await one

    async def main(pg: ProcessGroup) -> None:
        groups[pg.rank] = pg
        await pg.barrier()
        if pg.rank == 0:
            for waits in (False, True):
                for early in (False, True):
                    await once(pg, waits, early)
        await pg.barrier()

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("kind", ["object", "tensor"])
@pytest.mark.parametrize("early", [False, True])
def test_the_second_task_gets_the_first_message_where_the_first_task_was_cancelled(
    kind: str, early: bool
) -> None:
    async def main(pg: ProcessGroup) -> None:
        places = [np.array([-1]) for _ in range(3)]

        async def receive(index: int) -> int:
            got = await (pg.recv_object(0) if kind == "object" else pg.recv(places[index], 0))
            return got if kind == "object" else int(places[index][0])

        old, new = asyncio.create_task(receive(0)), asyncio.create_task(receive(1))
        await asyncio.sleep(0 if early else 1)
        old.cancel()
        for number in range(2):
            await (pg.send_object(number, 0) if kind == "object" else pg.send(np.array([number]), 0))
        assert [await new, await receive(2)] == [0, 1]
        assert places[0][0] == -1

    run_virtual(run_cluster(1, main))


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_a_receive_that_follows_a_cancel_gets_what_has_come_unread(
    pg: ProcessGroup, tmp_path: Path
) -> None:
    """The loop is blocked while both messages come."""
    await pg.send_object("connected", 1 - pg.rank)
    await pg.recv_object(1 - pg.rank)
    for kind in ("object", "tensor"):
        for turns in (1, 3, 30):
            places = [np.array([-1]) for _ in range(3)]
            await pg.barrier()
            if pg.rank:
                await pg.recv_object(0)
                for number in range(2):
                    await (pg.send_object(number, 0) if kind == "object" else pg.send(np.array([number]), 0))
                (tmp_path / f"{kind} {turns}").touch()
                continue

            def make(index: int) -> dist.Work[Any]:
                return pg.recv_object(1) if kind == "object" else pg.recv(places[index], 1)  # noqa: B023

            old = asyncio.create_task(make(0))
            for _ in range(turns):
                await asyncio.sleep(0)
            await pg.send_object("go", 1)
            while not (tmp_path / f"{kind} {turns}").exists():
                time.sleep(0.01)
            had = old.done()
            assert old.cancel() is not had
            got = [await make(1), 1 if had else await make(2)]
            if kind == "tensor":
                got = [int(place[0]) for place in places[1:]]
            assert got[: 2 - had] == ([1] if had else [0, 1])


HOLDS: dict[str, Callable[[Any], asyncio.Future[Any]]] = {
    **WRAPS,
    "ensure_future": asyncio.ensure_future,
}


ALL_KINDS = ["object", "large object", "tensor", "large tensor", "strided tensor"]


@pytest.mark.parametrize("hold", few(HOLDS, ["ensure_future", "gather"]))
@pytest.mark.parametrize("kind", few(ALL_KINDS, ["object", "large tensor"]))
@pytest.mark.parametrize("anyone", [False, True])
@pytest.mark.parametrize("cancelled", few([1, 3], [3]))
def test_a_receive_that_follows_the_cancel_of_an_unbegun_task_gets_the_next_message(
    hold: str, kind: str, anyone: bool, cancelled: int
) -> None:
    """All messages are here; the tasks are told of the cancel when the loop turns."""
    size = 40_000 if "large" in kind else 3

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            for number in range(6):
                data = np.full(size, number)
                await (pg.send_object(list(data), 0) if "object" in kind else pg.send(data, 0))
            return
        await asyncio.sleep(1)
        places = []

        def make() -> dist.Work[Any]:
            source = None if anyone else 1
            if "object" in kind:
                return pg.recv_object(source)
            whole = np.full(2 * size, -1)
            places.append(whole[::2] if "strided" in kind else whole[:size])
            return pg.recv(places[-1], source)

        olds = [HOLDS[hold](make()) for _ in range(cancelled)]
        if hold == "wait_for":
            await asyncio.sleep(0)  # else nobody has the Work, and nobody ever will: a forgotten await
        had = sum(old.done() for old in olds)  # from Python 3.12 on `wait_for` may have its message in a turn
        assert hold == "wait_for" or not had
        assert [old.cancel() for old in olds] == [number >= had for number in range(cancelled)]
        got = [await make() for _ in range(3)]
        if "tensor" in kind:
            got = places[cancelled:]
        assert [int(one[0]) for one in got] == [had, had + 1, had + 2]
        told = await asyncio.gather(*olds, return_exceptions=True)
        given_up = [isinstance(one, asyncio.CancelledError) for one in told]
        assert given_up == [number >= had for number in range(cancelled)]
        kept = [make() for _ in range(3 - had)]  # nobody cancels these
        rest = await asyncio.gather(*kept)
        found = rest if "object" in kind else places[3 + cancelled :]
        assert [int(one[0]) for one in found] == list(range(3 + had, 6))

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("ahead", range(4))
def test_a_receive_that_follows_the_cancel_of_a_block_gets_its_first_message(ahead: int, turns: int) -> None:
    """The messages come in the turn of the loop in which the block is cancelled, or about then."""
    begins = asyncio.Event()

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.barrier()
            await begins.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            for number in range(4):
                await pg.send(np.array([number]), 0)
            return

        async def block() -> None:
            async with pg.coalesce():
                pg.recv(np.empty(1, np.int64), 1)
                pg.recv(np.empty(1, np.int64), 1)

        task = asyncio.ensure_future(block())
        await pg.barrier()
        await asyncio.sleep(0.1)
        begins.set()
        for _ in range(ahead):
            await asyncio.sleep(0)
        first = 0 if task.cancel() else 2
        place = np.empty(1, np.int64)
        for number in range(first, 4):
            await pg.recv(place, 1)
            assert place[0] == number
        assert (await asyncio.wait([task]))[0]

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("kind", ["object", "tensor"])
def test_a_receive_that_cannot_be_taken_back_breaks_its_group(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory for its message: better no result than a wrong one."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.send_object("connected", 0)
            data = np.arange(300_000)
            with contextlib.suppress(dist.GroupBroken):
                await (pg.send_object(data.tolist(), 0) if kind == "object" else pg.send(data, 0))
            return
        await pg.recv_object(1)
        work = pg.recv_object(1) if kind == "object" else pg.recv(np.zeros(300_000, np.int64), 1)
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)

        def no_memory(*_: Any) -> None:
            raise MemoryError

        monkeypatch.setattr("aiodist.backends.host.messages.Messages.take_back", no_memory)
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(dist.GroupBroken, match="MemoryError"):
            await pg.barrier()

    run_virtual(run_cluster(2, main, return_exceptions=True))


async def send_numbered(pg: ProcessGroup, kind: str, count: int) -> None:
    """Send rank 0 so many messages, each its number."""
    for number in range(count):
        await (pg.send_object(number, 0) if kind == "object" else pg.send(np.array([number]), 0))


@pytest.mark.parametrize("kind", ["object", "tensor"])
@pytest.mark.parametrize("source", [1, None])
@pytest.mark.parametrize("turns", range(4))
def test_receives_that_wait_behind_each_other_keep_their_order(
    kind: str, source: int | None, turns: int
) -> None:
    """One is cancelled before its first step while others wait behind earlier ones, or after a held one."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await send_numbered(pg, kind, 6)
            return
        await asyncio.sleep(1)
        got: list[Any] = []

        def make() -> dist.Work[Any]:
            if kind == "object":
                return pg.recv_object(source)
            got.append(np.array([-1]))
            return pg.recv(got[-1], source)

        first, second = asyncio.ensure_future(make()), asyncio.ensure_future(make())
        for _ in range(turns):
            await asyncio.sleep(0)
        third = asyncio.ensure_future(make())
        assert third.cancel()
        fourth = await make()
        results = [await first, await second, fourth, await make()]
        assert (await asyncio.wait([third]))[0]
        if kind == "tensor":
            results = [int(got[index][0]) for index in (0, 1, 3, 4)]
        assert results == [0, 1, 2, 3]
        early, late = make(), make()  # the first of these is not awaited before the second has ended
        await late
        task = asyncio.ensure_future(early)
        await asyncio.sleep(0)
        assert task.done()
        last = [early.result(), late.result()]
        assert (last if kind == "object" else [int(one[0]) for one in got[-2:]]) == [4, 5]

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("kind", ["object", "tensor"])
@pytest.mark.parametrize("source", [1, None])
def test_a_receive_behind_one_that_was_begun_long_ago_waits_too(kind: str, source: int | None) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await send_numbered(pg, kind, 4)
            return
        await asyncio.sleep(1)
        places = [np.array([-1]) for _ in range(4)]

        def make(index: int) -> dist.Work[Any]:
            return pg.recv_object(source) if kind == "object" else pg.recv(places[index], source)

        old = make(0)
        one = await make(1)
        task = asyncio.ensure_future(old)
        assert task.cancel()
        got = [one, await make(2), await make(3)]
        assert (await asyncio.wait([task]))[0]
        if kind == "tensor":
            got = [int(place[0]) for place in places[1:]]
        assert got == [1, 0, 2]

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("kind", ["object", "tensor"])
def test_closing_gives_receives_that_wait_behind_another_what_has_come(kind: str, turns: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await send_numbered(pg, kind, 3)
            return
        await asyncio.sleep(1)
        places = [np.array([-1]) for _ in range(4)]
        tasks = [
            asyncio.ensure_future(pg.recv_object(1) if kind == "object" else pg.recv(place, 1))
            for place in places
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        await pg.aclose()
        *got, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert type(last) in (dist.GroupClosed, dist.PeerClosed)
        assert (got if kind == "object" else [int(place[0]) for place in places[:3]]) == [0, 1, 2]

    run_virtual(run_cluster(2, main))
