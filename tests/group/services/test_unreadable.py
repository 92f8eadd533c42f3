"""What travels and cannot be decoded: who waits for it gets an error, in its place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiodist as dist
from aiodist.base.errors import WireError
from aiodist.group import ProcessGroup
from aiodist.net.wire import objects
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow


def unreadable(rank: int, nbytes: int = 0) -> list[Any]:
    """A value that can be encoded, and not decoded: its keys have one hash value."""
    return [{(rank + i) * (2**61 - 1): i for i in range(1000)}, bytes(nbytes)]


def run(main: Callable[[ProcessGroup], Any], size: int) -> None:
    run_virtual(run_cluster(size, main, endpoint=Narrow().endpoint, timeout=100.0))


def test_it_can_be_sent() -> None:
    with pytest.raises(WireError, match="share their hash values"):
        objects.decode(objects.encode(unreadable(3)))


@pytest.mark.parametrize("nbytes", [0, 3 << 20], ids=["small", "in a thread"])
def test_a_call_whose_arguments_cannot_be_read_has_not_run(nbytes: int) -> None:
    """Nor has a stream; and its place is free again."""

    async def main(pg: ProcessGroup) -> None:
        ran: list[str] = []

        @pg.handler(limit=1)
        def plain(value: Any) -> int:
            ran.append("plain")
            return len(value)

        @pg.handler(limit=1)
        async def later(value: Any) -> int:
            ran.append("later")
            return len(value)

        @pg.handler(limit=1)
        async def parts(value: Any) -> AsyncIterator[int]:
            ran.append("parts")
            yield len(value)

        await pg.barrier()
        if pg.rank == 0:
            for _ in range(2):
                for handler in (plain, later):
                    with pytest.raises(dist.CallNotRun, match=r"arguments cannot be read: .*1000 keys"):
                        await pg.call(1, handler, unreadable(0, nbytes))
                stream = pg.stream(1, parts, unreadable(0, nbytes))
                for _ in range(2):
                    with pytest.raises(dist.CallNotRun, match=r"arguments cannot be read: .*1000 keys"):
                        await anext(stream)
            assert not ran
            assert [await pg.call(1, handler, "abc") for handler in (plain, later)] == [3, 3]
            assert [part async for part in pg.stream(1, parts, "abc")] == [3]
        await pg.barrier()

    run(main, 2)


@pytest.mark.parametrize("nbytes", [0, 3 << 20], ids=["small", "in a thread"])
def test_a_result_that_cannot_be_read_is_a_call_error(nbytes: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        pg.handler(lambda: unreadable(pg.rank, nbytes), name="plain")

        @pg.handler
        async def later() -> Any:
            return unreadable(pg.rank, nbytes)

        await pg.barrier()
        if pg.rank == 0:
            for name in ("plain", "later"):
                with pytest.raises(dist.CallError, match=r"its result cannot be read: .*1000 keys") as caught:
                    await pg.call(1, name)
                assert type(caught.value) is dist.CallError
                assert type(caught.value.__cause__) is WireError
        await pg.barrier()

    run(main, 2)


@pytest.mark.parametrize("nbytes", [0, 3 << 20], ids=["small", "in a thread"])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_part_that_cannot_be_read_ends_its_stream(bad: int, nbytes: int) -> None:
    """The handler is stopped, and the last part is no exception."""

    async def main(pg: ProcessGroup) -> None:
        ended: list[int] = []

        @pg.handler
        async def parts(pause: float) -> AsyncIterator[Any]:
            try:
                for number in range(3):
                    yield unreadable(pg.rank, nbytes) if number == bad else number
                    await asyncio.sleep(pause)
            finally:
                ended.append(pg.rank)

        await pg.barrier()
        if pg.rank == 0:
            for pause in (0.0, 5.0):
                stream = pg.stream(1, parts, pause)
                assert [await anext(stream) for _ in range(bad)] == list(range(bad))
                await asyncio.sleep(20)  # until all have come
                with pytest.raises(dist.CallError, match=r"a part cannot be read: .*1000 keys"):
                    await anext(stream)
                for _ in range(2):
                    with pytest.raises(dist.UsageError, match="left before its end"):
                        await anext(stream)
            await asyncio.sleep(1)
        await pg.barrier()
        assert ended == ([1, 1] if pg.rank else [])

    run(main, 2)


async def until_left(pg: ProcessGroup, count: int) -> list[Any]:
    """So many messages: (sender, what it says); errors by their senders, and None."""
    taken: list[Any] = []
    messages = pg.messages()
    while len(taken) < count:
        try:
            taken.append(await anext(messages))
        except dist.UnreadableMessage as error:
            taken.append((error.sender, None))
    return taken


@pytest.mark.parametrize("nbytes", [0, 3 << 20], ids=["small", "in a thread"])
def test_a_message_that_cannot_be_read_is_an_error_in_its_place(nbytes: int) -> None:
    size = 3

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank:
            for number in range(6):
                bad = number % size == pg.rank
                await pg.send_message(0, unreadable(pg.rank, nbytes) if bad else [pg.rank, number])
            await pg.barrier()
            return
        await pg.barrier()  # all are confirmed
        taken = await until_left(pg, 12)
        for rank in range(1, size):
            expected = [(rank, None if number % size == rank else [rank, number]) for number in range(6)]
            assert [one for one in taken if one[0] == rank] == expected

    run(main, size)


def test_who_has_left_the_group_since_is_no_member() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group([0, 2])
        if pg.rank == 1:
            await pg.send_message(0, unreadable(1))
        await pg.barrier()
        if pg.rank == 0:
            assert group is not None
            with pytest.raises(dist.UnreadableMessage, match="of a process that is no member") as caught:
                await anext(group.messages())
            assert caught.value.sender is None
        await pg.barrier()

    run(main, 3)


def test_cancelling_who_takes_it_loses_no_error() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.send_message(0, unreadable(1, 3 << 20))
            await pg.send_message(0, "behind it")
        await pg.barrier()
        if pg.rank == 0:
            messages = pg.messages()
            with pytest.raises(dist.UnreadableMessage) as caught:
                for turns in itertools.count():
                    task = asyncio.ensure_future(anext(messages))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        raise AssertionError(f"taken: {await task}")
            assert str(caught.value).startswith(
                "a message of rank 1 cannot be read: an object with 1000 keys"
            )
            assert type(caught.value.__cause__) is WireError
            assert await anext(messages) == (1, "behind it")
        await pg.barrier()

    asyncio.run(run_cluster(2, main))
