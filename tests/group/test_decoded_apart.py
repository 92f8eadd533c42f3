"""A received object that is slow to decode is decoded by a thread, and its message is matched meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup, objects
from aiodist.net.wire.objects import decode
from aiodist.testing import run_cluster, run_virtual
from aiodist.testing.clock import VirtualLoop
from tests.waiting import until_so

LARGE = 300_000
"""Elements of 8 bytes."""


class Held:
    """What threads would do, held until a test lets it be done."""

    def __init__(self) -> None:
        self.begun = 0
        self._waiting: list[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]] = []

    def run_in_executor(
        self, loop: asyncio.AbstractEventLoop, _executor: object, function: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """In the place of the loop's."""
        self.begun += 1
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((function, args, future))
        return future

    async def some(self, count: int = 1) -> None:
        """Return when so many have begun in all."""
        await until_so(lambda: self.begun >= count, f"{count} that threads would do")

    def finish(self) -> None:
        """Do what is held."""
        waiting, self._waiting = self._waiting, []
        for function, args, future in waiting:
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(VirtualLoop, "run_in_executor", lambda loop, *args: made.run_in_executor(loop, *args))
    yield made
    made.finish()


def content(number: int) -> Any:
    return np.arange(LARGE) * 10 + number


def number_of(obj: Any) -> int:
    number = int(obj[0])
    assert np.array_equal(obj, content(number))
    return number


def run(receives: Callable[[ProcessGroup], Any], sends: Callable[[ProcessGroup], Any]) -> None:
    """Run rank 0's part and rank 1's."""

    async def main(pg: ProcessGroup) -> None:
        await (sends if pg.rank else receives)(pg)

    run_virtual(run_cluster(2, main, timeout=300))


async def sends_three(pg: ProcessGroup) -> None:
    works = [pg.send_object(content(number), 0, async_op=True) for number in range(3)]
    for work in works:
        await work


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("what", ["bytes", "containers"])
@pytest.mark.parametrize("anybody", [False, True])
async def test_a_thread_decodes_what_is_slow(
    what: str, anybody: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    obj: Any = b"x" * (1 << 21) if what == "bytes" else [[number] for number in range(20_000)]
    threads: list[int] = []

    def decodes(data: Any, **more: Any) -> Any:
        threads.append(threading.get_ident())
        return decode(data, **more)

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.send_object(obj, 0)
            await pg.send_object("small", 0)
        else:
            src = None if anybody else 1
            assert await pg.recv_object_from(src) == (1, obj)
            assert await pg.recv_object(src) == "small"

    monkeypatch.setattr(objects, "decode", decodes)
    await run_cluster(2, main)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, True]


@pytest.mark.parametrize("anybody", [False, True])
@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_receive_that_is_cancelled_while_a_thread_decodes_leaves_the_message(
    held: Held, when: str, anybody: bool
) -> None:
    """To the next receive, whenever that is posted, and it is decoded once."""
    src = None if anybody else 1

    async def receives(pg: ProcessGroup) -> None:
        first = asyncio.ensure_future(pg.recv_object(src))
        await held.some()
        second = pg.recv_object(src, async_op=True) if when == "before" else None
        await asyncio.sleep(0.1)
        await cancelled(first)
        if when == "after":
            held.finish()
            await asyncio.sleep(0.1)
        if second is None:
            second = pg.recv_object(src, async_op=True)
        third = pg.recv_object(src, async_op=True)
        last = pg.recv_object(src, async_op=True)
        await held.some(3)
        held.finish()
        assert [number_of(await work) for work in (second, third, last)] == [0, 1, 2]
        assert held.begun == 3

    run(receives, sends_three)


def test_receives_that_are_given_up_again_and_again_make_one_thread_decode(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pg.recv_object(1), 0.5)
        assert held.begun == 1
        held.finish()
        assert number_of(await pg.recv_object(1)) == 0
        works = [pg.recv_object(1, async_op=True) for _ in range(2)]
        await held.some(3)
        held.finish()
        assert [number_of(await work) for work in works] == [1, 2]

    run(receives, sends_three)


def test_a_small_message_that_follows_does_not_take_its_place(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        large = asyncio.ensure_future(pg.recv_object(1))
        await held.some()
        assert await pg.recv_object(1) == "small"
        await cancelled(large)
        again = pg.recv_object(1, async_op=True)
        held.finish()
        assert number_of(await again) == 0

    async def sends(pg: ProcessGroup) -> None:
        await pg.send_object(content(0), 0)
        await pg.send_object("small", 0)

    run(receives, sends)


def test_closing_waits_for_what_is_decoded(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        work = pg.recv_object(1, async_op=True)
        await held.some()
        closing = asyncio.ensure_future(pg.aclose())
        await asyncio.sleep(1)
        assert not closing.done()
        held.finish()
        await closing
        assert number_of(work.result()) == 0

    async def sends(pg: ProcessGroup) -> None:
        await pg.send_object(content(0), 0)

    run(receives, sends)


def test_it_comes_though_its_sender_closes_meanwhile(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        first = asyncio.ensure_future(pg.recv_object(1))
        await held.some()
        await asyncio.sleep(10)
        await cancelled(first)
        second = pg.recv_object(1, async_op=True)
        await asyncio.sleep(10)
        held.finish()
        assert number_of(await second) == 0
        with pytest.raises(dist.PeerClosed):
            await pg.recv_object(1)

    async def sends(pg: ProcessGroup) -> None:
        await pg.send_object(content(0), 0)

    run(receives, sends)


def test_a_group_that_breaks_ends_it(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        work = group.recv_object(1, async_op=True)
        await held.some()
        group.abort("enough")
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work
        held.finish()
        await asyncio.sleep(1)
        await group.aclose()

    async def sends(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.send_object(content(0), 1 - pg.rank)
        with pytest.raises(dist.GroupAborted):
            await group.barrier()
        await group.aclose()

    run(receives, sends)


@pytest.mark.parametrize("gives_up", [False, True])
def test_what_cannot_be_decoded_fails_one_receive(
    held: Held, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:

    def decodes(data: Any, **more: Any) -> Any:
        obj = decode(data, **more)
        if int(obj[0]) == 0:
            raise dist.WireError("nonsense")
        return obj

    async def receives(pg: ProcessGroup) -> None:
        first = asyncio.ensure_future(pg.recv_object(1))
        await held.some()
        if gives_up:
            await cancelled(first)
            held.finish()
            await asyncio.sleep(0.1)
            first = asyncio.ensure_future(pg.recv_object(1))
        held.finish()
        with pytest.raises(dist.WireError, match="nonsense"):
            await first
        works = [pg.recv_object(1, async_op=True) for _ in range(2)]
        await held.some(3)
        held.finish()
        assert [number_of(await work) for work in works] == [1, 2]

    monkeypatch.setattr(objects, "decode", decodes)
    run(receives, sends_three)


def test_a_receive_that_allows_pickle_decodes_it_anew(held: Held) -> None:
    async def receives(pg: ProcessGroup) -> None:
        first = asyncio.ensure_future(pg.recv_object(1))
        await held.some()
        await cancelled(first)
        obj = await pg.recv_object(1, allow_pickle=True)
        assert type(obj[0]) is Pickled and number_of(obj[1]) == 7
        held.finish()

    async def sends(pg: ProcessGroup) -> None:
        await pg.send_object([Pickled(), content(7)], 0, allow_pickle=True)

    run(receives, sends)


class Pickled:
    """A type that does not travel as data."""
