"""A stream gives all its parts, each once and in order, or an error: never some of them and then an end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import aiodist as dist
from aiodist.base.errors import WireError
from aiodist.group import ProcessGroup
from aiodist.group.services.fields import PARTS
from aiodist.net.wire import objects
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow
from tests.levels import few

COUNT = 6


def ask(client: Callable[[ProcessGroup], Awaitable[None]], stopped: list[str] | None = None) -> None:
    """Run `client(pg)` on rank 0 in virtual time, beside handlers on rank 1."""

    async def main(pg: ProcessGroup) -> None:
        serve(pg, [] if stopped is None else stopped)
        await pg.barrier()
        if pg.rank == 0:
            await client(pg)
        await pg.barrier()

    run_virtual(run_cluster(2, main, endpoint=Narrow().endpoint, timeout=100.0))


def serve(pg: ProcessGroup, stopped: list[str]) -> None:
    """The handlers: each notes its name when it is stopped."""

    @pg.handler
    async def slow() -> AsyncIterator[int]:
        try:
            for number in range(COUNT):
                yield number
                await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            stopped.append("slow")
            raise

    @pg.handler
    async def fails() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(0.3)
        raise ValueError("after one")

    @pg.handler
    async def checked() -> AsyncIterator[dict[str, int]]:
        for number in range(COUNT):
            yield {"number": number}
            await asyncio.sleep(0.3)

    @pg.handler
    async def silent() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(1000)


async def by_wait_for(stream: Any, seconds: float) -> Any:
    return await asyncio.wait_for(anext(stream), seconds)


async def by_timeout(stream: Any, seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await anext(stream)


async def by_wait(stream: Any, seconds: float) -> Any:
    task = asyncio.ensure_future(anext(stream))
    await asyncio.wait([task], timeout=seconds)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        raise TimeoutError
    return await task


async def by_cancelled_task(stream: Any, seconds: float) -> Any:
    """A task that is cancelled before its first step, then one that is not."""
    task = asyncio.ensure_future(anext(stream))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    return await by_wait(stream, seconds)


async def by_task_group(stream: Any, seconds: float) -> Any:
    async def give_up() -> None:
        await asyncio.sleep(seconds)
        raise TimeoutError

    try:
        async with asyncio.TaskGroup() as tasks:
            timer = tasks.create_task(give_up())
            part = await anext(stream)
            timer.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return part


async def plainly(stream: Any, seconds: float) -> Any:
    return await anext(stream)


WAYS = [by_wait_for, by_timeout, by_wait, by_cancelled_task, by_task_group]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.1, 0.3])
def test_a_stream_goes_on_where_taking_a_part_is_cancelled(way: Any, seconds: float) -> None:
    """In the turn in which a part comes, too: the times are multiples of each other."""

    async def client(pg: ProcessGroup) -> None:
        got = []
        async with pg.stream(1, "slow") as stream:
            takes = way
            while True:
                try:
                    got.append(await takes(stream, seconds))
                    takes = way
                except TimeoutError:
                    takes = way if seconds else plainly  # no time may be too short for any part
                except StopAsyncIteration:
                    break
        assert got == list(range(COUNT))

    ask(client)


@pytest.mark.parametrize("turns", few(range(12), [0, 1, 3, 5]))
def test_a_cancel_in_each_turn(turns: int) -> None:
    """While it is dialed, asked, and while each part is on its way."""

    async def client(pg: ProcessGroup) -> None:
        stream, got = pg.stream(1, "slow"), []
        for _ in range(60):
            task = asyncio.ensure_future(anext(stream))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got.append(await task)
            await asyncio.sleep(0.02)
        got += [part async for part in stream]
        assert got == list(range(COUNT))

    ask(client)


async def test_a_large_part_whose_decoding_is_cancelled() -> None:
    """It is decoded in a thread; the credit for it is given back once."""
    sizes = [PARTS + 1, 3, 2 * PARTS, 4, PARTS + 2]

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def large() -> AsyncIterator[bytes]:
            for size in sizes:
                yield bytes(size)

        await pg.barrier()
        if pg.rank == 0:
            got: list[int] = []
            stream = pg.stream(1, large)
            while len(got) < len(sizes):
                task = asyncio.ensure_future(anext(stream))
                while not (stream._parts or task.done()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                if len(got) % 2 == 0:
                    task.cancel()
                    await asyncio.wait([task])
                    assert not task.done() or task.cancelled() or len(task.result()) == sizes[len(got)]
                if task.cancelled():
                    got.append(len(await anext(stream)))
                else:
                    got.append(len(await task))
            assert got == sizes
            assert [part async for part in stream] == []
        await pg.barrier()

    await run_cluster(2, main)


def test_who_leaves_a_stream_early_gets_an_error_and_no_end() -> None:
    stopped: list[str] = []

    async def client(pg: ProcessGroup) -> None:
        stream = pg.stream(1, "slow")
        assert await anext(stream) == 0
        reader = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        await stream.aclose()  # while another task waits for the next part
        with pytest.raises(dist.UsageError, match="left before its end"):
            await reader
        for _ in range(2):
            with pytest.raises(dist.UsageError, match="left before its end"):
                await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.1)
        assert stopped == ["slow"]
        never = pg.stream(1, "slow")
        await never.aclose()
        with pytest.raises(dist.UsageError, match="left before its end"):
            await anext(never)

    ask(client, stopped)


def test_a_stream_whose_parts_are_all_taken_has_ended_whatever_follows() -> None:
    async def client(pg: ProcessGroup) -> None:
        async with pg.stream(1, "slow") as stream:
            assert [part async for part in stream] == list(range(COUNT))
            assert [part async for part in stream] == []
        assert [part async for part in stream] == []

    ask(client)


def test_a_loop_that_is_broken_off_can_be_taken_up() -> None:
    async def client(pg: ProcessGroup) -> None:
        stream, got = pg.stream(1, "slow"), []
        for _ in range(COUNT):
            async for part in stream:
                got.append(part)
                break
        assert got == list(range(COUNT))
        assert [part async for part in stream] == []

    ask(client)


def test_an_error_ends_a_stream_and_comes_again() -> None:
    async def client(pg: ProcessGroup) -> None:
        stream = pg.stream(1, "fails")
        assert await anext(stream) == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.1)
        for _ in range(3):
            with pytest.raises(dist.RemoteError, match="after one"):
                await anext(stream)
        stream = pg.stream(1, "silent", timeout=2)
        assert await anext(stream) == 0
        for _ in range(3):
            with pytest.raises(dist.CallTimeout, match="no part within 2 s"):
                await anext(stream)
        stream = pg.stream(1, "nothing")
        for _ in range(3):
            with pytest.raises(dist.CallNotRun, match="no handler"):
                await anext(stream)

    ask(client)


class Own(BaseException):
    """An exception of the program's that is no Exception."""


@dataclass
class Checked:
    """A part that the receiver does not accept where its number is `refused`."""

    number: int
    refused: ClassVar[int] = -1
    raises: ClassVar[type[BaseException]] = ValueError

    def __post_init__(self) -> None:
        if self.number == self.refused:
            raise self.raises("not here")


@pytest.mark.parametrize("raises", [ValueError, TypeError, StopAsyncIteration, StopIteration, Own])
@pytest.mark.parametrize("refused", [0, 1, COUNT - 1])
def test_a_part_that_cannot_be_made_ends_a_stream_and_the_error_comes_again(
    refused: int, raises: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part, too, behind which the stream would end well."""
    stopped: list[str] = []

    async def client(pg: ProcessGroup) -> None:
        async def checked() -> AsyncIterator[Checked]:  # only its name and its annotation matter
            yield Checked(0)

        monkeypatch.setattr(Checked, "raises", raises)
        for pause in (0.0, 10.0):  # as they come, and when all have come
            monkeypatch.setattr(Checked, "refused", -1)
            stream = pg.stream(1, checked)
            if pause:
                assert await anext(stream) == Checked(0)
                await asyncio.sleep(pause)
            monkeypatch.setattr(Checked, "refused", max(refused, int(pause > 0)))
            with pytest.raises(Own if raises is Own else dist.CallError, match="not here") as caught:
                while True:
                    part = await anext(stream)
                    assert part.number < Checked.refused
            assert raises is Own or type(caught.value.__cause__) is raises
            for _ in range(3):
                with pytest.raises(dist.UsageError, match="left before its end"):
                    await anext(stream)
        await asyncio.sleep(1)
        services, uid, _rank, _limit = pg._calls._towards(1, None)
        caller = services.peers.by_uid[uid].caller
        assert caller is not None
        assert not caller.asking.calls

    ask(client, stopped)


def test_two_tasks_take_parts_of_one_stream() -> None:
    async def client(pg: ProcessGroup) -> None:
        stream = pg.stream(1, "slow")
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(dist.UsageError, match="two tasks"):
            await anext(stream)
        assert await first == 0
        assert [part async for part in stream] == list(range(1, COUNT))

    ask(client)


@pytest.mark.parametrize("turns", few(range(8), [0, 2, 4]))
def test_a_stream_that_is_dropped_or_left_before_it_is_sent(turns: int) -> None:
    """Its handler is stopped, or never begins; those behind it go on."""
    stopped: list[str] = []

    async def client(pg: ProcessGroup) -> None:
        for left in (True, False):
            stream: Any = pg.stream(1, "slow")
            task: Any = asyncio.ensure_future(anext(stream))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if left:
                await stream.aclose()
            del stream, task
            gc.collect()
        await asyncio.sleep(0.2)
        began = len(stopped)
        assert [part async for part in pg.stream(1, "slow")] == list(range(COUNT))
        assert len(stopped) == began
        services, uid, _rank, _limit = pg._calls._towards(1, None)
        caller = services.peers.by_uid[uid].caller
        assert caller is not None
        assert not caller.asking.calls

    ask(client, stopped)


def test_messages_go_on_where_taking_one_is_cancelled() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank:
            for number in range(COUNT):
                await pg.send_message(0, number)
                await asyncio.sleep(0.3)
        else:
            got, messages = [], pg.messages()
            for way in WAYS * 20:
                with contextlib.suppress(TimeoutError):
                    got.append((await way(messages, 0.05))[1])
            while len(got) < COUNT:
                got.append((await anext(messages))[1])
            assert got == list(range(COUNT))
        await pg.barrier()

    run_virtual(run_cluster(2, main, timeout=100.0))


@pytest.mark.parametrize("large", [False, True], ids=["waits", "decodes"])
async def test_messages_stay_where_the_coroutine_that_takes_one_is_closed(large: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank and large:  # it is decoded in a thread
            await pg.send_message(0, [0, bytes(3_000_000)])
        elif not pg.rank:
            messages = pg.messages()
            if large:
                await pg.barrier()
            step = anext(messages).__await__()
            step.send(None)
            other = asyncio.create_task(_next_of(messages))
            await asyncio.sleep(0)
            step.close()
            if not large:
                await pg.barrier()
            async with asyncio.timeout(10):
                assert (await other)[1][0] == 0
            return
        await pg.barrier()
        if not large:
            await pg.send_message(0, [0])

    await run_cluster(2, main, timeout=20.0)


async def _next_of(messages: AsyncIterator[Any]) -> Any:
    return await anext(messages)


class Gate:
    """Decoding of what is large, which waits until it is let go.

    Attributes:
        begun: how often it has begun.
        let_go: set: it goes on.
        fails: it raises an error then.
        ended: called in its thread when it has ended.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.let_go = threading.Event()
        self.fails = False
        self.ended: Callable[[], object] = int
        self._decode = objects.decode
        monkeypatch.setattr(objects, "decode", self._decoding)

    def _decoding(self, data: Any) -> Any:
        if len(data) < objects.LARGE:
            return self._decode(data)
        self.begun += 1
        assert self.let_go.wait(60)
        try:
            if self.fails:
                raise WireError("nonsense")
            return self._decode(data)
        finally:
            self.ended()


def large(number: int) -> bytes:
    return bytes([number]) * objects.LARGE


async def from_other(client: Callable[[Any], Awaitable[None]], kind: str, count: int) -> None:
    """Run `client(parts)` on rank 0: the iterator of so many large messages, or parts, of rank 1."""

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def parts() -> AsyncIterator[bytes]:
            for number in range(count):
                yield large(number)

        await pg.barrier()
        if kind == "messages" and pg.rank:
            for number in range(count):
                await pg.send_message(0, large(number))
        elif not pg.rank:
            await client(pg.stream(1, parts) if kind == "stream" else pg.messages())
        await pg.barrier()

    await run_cluster(2, main, timeout=60.0)


def which(part: Any) -> int:
    """The number of a large part or message."""
    data = part if type(part) is bytes else part[1]
    assert data == large(data[0])
    return int(data[0])


KINDS = pytest.mark.parametrize("kind", ["stream", "messages"])


@KINDS
async def test_what_takes_longer_to_decode_than_who_takes_it_waits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decoded once, however often the await of it is cancelled."""
    gate = Gate(monkeypatch)

    async def client(parts: Any) -> None:
        for number in range(3):
            gate.let_go.clear()
            tries = 0
            while tries < 5:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(parts), 0.01)
                tries += gate.begun > number
            gate.let_go.set()
            assert which(await anext(parts)) == number
        assert gate.begun == 3

    await from_other(client, kind, 3)


@KINDS
@pytest.mark.parametrize("turns", [*range(5)])
async def test_a_cancel_in_the_turn_in_which_it_is_decoded(
    kind: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, loop = Gate(monkeypatch), asyncio.get_running_loop()
    gate.let_go.set()

    async def client(parts: Any) -> None:
        got: list[int] = []
        for _ in range(4):
            decoded = asyncio.Event()
            gate.ended = lambda decoded=decoded: loop.call_soon_threadsafe(decoded.set)  # type: ignore[misc]
            task = asyncio.ensure_future(anext(parts))
            await decoded.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                got.append(which(await task))
            except asyncio.CancelledError:
                got.append(which(await anext(parts)))
        assert got == [0, 1, 2, 3]
        assert gate.begun == 4

    await from_other(client, kind, 4)


@KINDS
async def test_what_cannot_be_decoded_and_nobody_wants_any_more(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, loop, untold = Gate(monkeypatch), asyncio.get_running_loop(), list[Any]()
    gate.fails = True
    loop.set_exception_handler(lambda _, context: untold.append(context))

    async def client(parts: Any) -> None:
        ended = asyncio.Event()
        gate.ended = lambda: loop.call_soon_threadsafe(ended.set)
        while not gate.begun:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(parts), 0.01)
        if kind == "stream":
            await parts.aclose()
        gate.let_go.set()
        await ended.wait()

    await from_other(client, kind, 1)
    gc.collect()
    await asyncio.sleep(0)
    assert not untold
