"""Calls, streams and messages between the ranks of one process: what each ends with, and what is bounded."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services import handlers
from aiodist.group.services.fields import PARTS
from aiodist.group.services.mailbox import MESSAGES
from aiodist.group.services.under_way import CALLS
from aiodist.net.wire.calls import MAX_PAYLOAD, Says, frame
from aiodist.testing import run_cluster, run_virtual
from tests.helpers import services_of
from tests.levels import COSTLY


@dataclass
class Query:
    key: str
    limit: int = 3


@dataclass
class Found:
    values: list[int]


async def cluster(server: Any, client: Any, size: int = 2) -> Any:
    """Run `server(pg)` on every rank but 0, then `client(pg)` on rank 0; what that returns."""

    async def main(pg: ProcessGroup) -> Any:
        if pg.rank:
            server(pg)
        await pg.barrier()
        result = await client(pg) if pg.rank == 0 else None
        await pg.barrier()
        return result

    return (await run_cluster(size, main))[0]


async def test_results_errors_and_names() -> None:
    async def lookup(query: Query) -> Found:
        assert type(query) is Query
        return Found([len(query.key), query.limit])

    def server(pg: ProcessGroup) -> None:
        pg.handler(lookup)

        @pg.handler(name="power")
        def elsewhere(base: int, exponent: int = 2) -> int:
            return int(base**exponent)

        @pg.handler
        async def fails() -> None:
            raise KeyError("line one\nline two")

        @pg.handler
        def soon() -> Any:
            async def later() -> str:
                return "later"

            return later()

        @pg.handler
        async def cancels_itself() -> None:
            raise asyncio.CancelledError

        @pg.handler
        def strange() -> object:
            return object()

    async def client(pg: ProcessGroup) -> None:
        assert await pg.call(1, lookup, Query("abc")) == Found([3, 3])
        assert await pg.call(1, "lookup", Query("abcd", 9)) == {"values": [4, 9]}
        assert await pg.call(1, "power", 3) == 9
        assert await pg.call(1, "soon") == "later"
        with pytest.raises(dist.RemoteError, match="it raised KeyError: 'line one") as caught:
            await pg.call(1, "fails")
        assert (caught.value.type_name, caught.value.rank, caught.value.name) == ("KeyError", 1, "fails")
        assert caught.value.text == repr("line one\nline two")
        with pytest.raises(dist.RemoteError, match="CancelledError"):
            await pg.call(1, "cancels_itself")
        with pytest.raises(dist.RemoteError, match=r"aiodist\.UsageError"):
            await pg.call(1, "strange")
        for args in [(), (1, 2, 3)]:
            with pytest.raises(dist.CallNotRun, match="takes 1 to 2 arguments"):
                await pg.call(1, "power", *args)
        with pytest.raises(dist.CallNotRun, match="lookup takes 1 argument, not 2"):
            await pg.call(1, "lookup", Query("abcd", 9), 2)
        with pytest.raises(dist.CallNotRun, match="Query has no field 'nothing'"):
            await pg.call(1, "lookup", {"nothing": 1})
        with pytest.raises(dist.CallNotRun, match=r"use pg\.call"):
            async for _ in pg.stream(1, "fails"):
                pass
        with pytest.raises(dist.UsageError, match="a lambda has no name"):
            await pg.call(1, lambda: 3)
        for wrong in [object(), "", 3]:
            with pytest.raises(dist.UsageError):
                await pg.call(1, wrong)  # type: ignore[call-overload]
        with pytest.raises(dist.UsageError, match="not a rank of this group"):
            await pg.call(2, "power", 1)
        with pytest.raises(dist.UsageError, match="cannot be sent"):
            await pg.call(1, "power", object())
        with pytest.raises(dist.UsageError, match="at most"):
            await pg.call(1, "power", np.zeros(MAX_PAYLOAD + 1, np.uint8))
        wrongs: list[tuple[Any, dict[str, Any]]]
        wrongs = [(3, {}), (len, {"limit": 0}), (len, {"name": ""}), (lambda: 0, {})]
        for wrong, how in wrongs:
            with pytest.raises(dist.UsageError):
                pg.handler(wrong, **how)

    await cluster(server, client)


@dataclass
class Even:
    """What each rank accepts where its `odd` says so."""

    number: int
    odd: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.number % 2 and not Even.odd:
            raise KeyError(f"{self.number} is odd \udcff")  # which is no text that travels


async def test_a_dataclass_that_refuses_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    async def half(one: Even) -> Even:
        ran.append(one.number)
        return one

    def plain(one: Even) -> Even:
        ran.append(one.number)
        return one

    def server(pg: ProcessGroup) -> None:
        for handler in (half, plain):
            pg.handler(handler)
        pg.handler(lambda number: {"number": number}, name="makes")

    async def makes(number: int) -> Even:
        raise NotImplementedError

    async def client(pg: ProcessGroup) -> None:
        odd, even = Even(7), Even(4)
        monkeypatch.setattr(Even, "odd", False)
        for handler in (half, plain):
            with pytest.raises(dist.CallNotRun, match=r"argument 1 of .*no Even .*KeyError: '7 is odd"):
                await pg.call(1, handler, odd)
            assert await pg.call(1, handler, even) == even
        assert ran == [4, 4]
        with pytest.raises(dist.CallError, match=r"a result of another shape: no Even .*'9 is odd") as caught:
            await pg.call(1, makes, 9)
        assert isinstance(caught.value.__cause__, KeyError)
        assert await pg.call(1, makes, 2) == Even(2)

    await cluster(server, client)


async def test_a_name_that_nobody_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "GRACE", 0.01)

    async def client(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CallNotRun, match=r"no handler 'nothing'; it has length"):
            await pg.call(1, "nothing")
        with pytest.raises(dist.CallNotRun, match=r"no handler 'lenght'; did you mean 'length'\?"):
            await pg.call(1, "lenght")

    await cluster(lambda pg: pg.handler(len, name="length"), client)


def test_a_wrong_name_waits_only_while_others_are_registered() -> None:
    async def client(pg: ProcessGroup) -> None:
        loop = asyncio.get_running_loop()
        waited = []
        for pause in (0.25, 1.5, 0.0):
            await asyncio.sleep(pause)
            began = loop.time()
            with pytest.raises(dist.CallNotRun):
                await pg.call(1, "lenght")
            waited.append(round(loop.time() - began, 2))
        assert waited == [0.75, 0.0, 0.0]

    run_virtual(cluster(lambda pg: pg.handler(len, name="length"), client))


async def test_a_call_waits_for_its_handler() -> None:
    async def main(pg: ProcessGroup) -> Any:
        if pg.rank == 0:
            return await pg.call(1, "late", 5)
        await pg.send_message(1, "to itself")
        async for sender, message in pg.messages():
            assert (sender, message) == (1, "to itself")
            break
        await asyncio.sleep(0)
        pg.handler(lambda value: value + 1, name="late")
        await pg.recv_object(0)
        return None

    async def both(pg: ProcessGroup) -> Any:
        result = await main(pg)
        if pg.rank == 0:
            await pg.send_object("done", 1)
        return result

    assert await run_cluster(2, both) == [6, None]


async def test_calls_that_call_back() -> None:
    async def main(pg: ProcessGroup) -> Any:
        @pg.handler
        async def down(depth: int) -> list[int]:
            rest = await pg.call((pg.rank + 1) % 3, down, depth - 1) if depth else []
            return [pg.rank, *rest]

        await pg.barrier()
        result = await pg.call((pg.rank + 1) % 3, down, 6)
        await pg.barrier()
        return result

    assert await run_cluster(3, main) == [[(rank + 1 + i) % 3 for i in range(7)] for rank in range(3)]


def test_deadlines_and_cancellation_reach_the_other_side() -> None:
    """In virtual time: the handler is stopped when its caller gives up."""
    ended: list[tuple[str, float]] = []

    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        async def waits(name: str) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ended.append((name, asyncio.get_running_loop().time()))
                raise

    run_virtual(_deadlines(server, ended))


async def _deadlines(server: Any, ended: list[tuple[str, float]]) -> None:
    async def client(pg: ProcessGroup) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(dist.CallTimeout, match="no answer within 5 s") as caught:
            await pg.call(1, "waits", "deadline", timeout=5)
        assert isinstance(caught.value, TimeoutError | dist.CallUnknown)
        task = asyncio.create_task(pg.call(1, "waits", "cancelled"))
        await asyncio.sleep(2)
        waiting = asyncio.create_task(pg.call(1, "waits", "never", timeout=8))  # the other has the only slot
        await asyncio.sleep(10)
        with pytest.raises(dist.CallTimeout):
            await waiting
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(1)
        assert [(name, round(at - began)) for name, at in ended] == [("deadline", 5), ("cancelled", 17)]

    await cluster(server, client)


async def test_no_more_than_a_limit_run_at_once_and_others_wait() -> None:
    running: list[int] = []
    go = asyncio.Event()

    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=3)
        async def work(number: int) -> int:
            running.append(number)
            await go.wait()
            return number

    async def client(pg: ProcessGroup) -> None:
        tasks = [asyncio.create_task(pg.call(1, "work", number)) for number in range(CALLS + 40)]
        caller = None
        while caller is None or len(caller.asking.calls) < CALLS or len(running) < 3:
            await asyncio.sleep(0)
            services, uid, _rank, _limit = pg._calls._towards(1, None)
            caller = services.peers.by_uid[uid].caller if uid in services.peers.by_uid else None
        assert running == [0, 1, 2]
        assert len(caller.asking.calls) == CALLS
        tasks[-1].cancel()  # it waits here
        go.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[:-1] == list(range(CALLS + 39))
        assert isinstance(results[-1], asyncio.CancelledError)
        assert CALLS + 39 not in running

    await cluster(server, client)


async def test_streams() -> None:
    made: list[int] = []
    stopped: list[str] = []

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def squares(count: int) -> AsyncIterator[int]:
            for number in range(count):
                yield number * number
            if count == 7:
                raise ValueError("seven")

        @pg.handler
        async def blocks(name: str) -> AsyncIterator[bytes]:
            try:
                while True:
                    made.append(1)
                    yield bytes(PARTS // 8)
            finally:
                stopped.append(name)

        @pg.handler
        async def found(count: int) -> AsyncIterator[Found]:
            for number in range(count):
                yield Found([number])

    async def until(condition: Any) -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def client(pg: ProcessGroup) -> None:
        async def found(count: int) -> AsyncIterator[Found]:
            yield Found([])

        assert [n async for n in pg.stream(1, "squares", 3_000)] == [n * n for n in range(3_000)]
        assert [n async for n in pg.stream(1, "squares", 0)] == []
        assert [one async for one in pg.stream(1, found, 2)] == [Found([0]), Found([1])]
        seen = []
        with pytest.raises(dist.RemoteError, match="seven"):
            async for number in pg.stream(1, "squares", 7):
                seen += [number]
        assert len(seen) == 7
        with pytest.raises(dist.CallNotRun, match=r"use pg\.stream"):
            await pg.call(1, "squares", 1)

        async with pg.stream(1, "blocks", "left") as parts:
            assert len(await anext(parts)) == PARTS // 8
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(made) <= 12  # a slow consumer lets the handler wait
        await until(lambda: stopped == ["left"])
        with pytest.raises(dist.UsageError, match="left before its end"):  # else it would seem whole
            await anext(parts)

        async for _ in pg.stream(1, "blocks", "dropped"):
            break
        gc.collect()
        await until(lambda: stopped == ["left", "dropped"])

        async def consume() -> None:
            async for _ in pg.stream(1, "blocks", "cancelled"):
                await asyncio.sleep(0)

        task = asyncio.create_task(consume())
        before = len(made)
        await until(lambda: len(made) > before + 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: stopped == ["left", "dropped", "cancelled"])

        two = pg.stream(1, "blocks", "two")
        first = asyncio.create_task(anext(two))
        await asyncio.sleep(0)
        with pytest.raises(dist.UsageError, match="two tasks"):
            await anext(two)
        await first
        await two.aclose()

    await cluster(server, client)


def test_a_part_that_does_not_come() -> None:
    stopped: list[bool] = []

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def one() -> AsyncIterator[int]:
            yield 1
            try:
                await asyncio.sleep(1000)
            finally:
                stopped.append(True)

    async def client(pg: ProcessGroup) -> None:
        parts = pg.stream(1, "one", timeout=3)
        assert await anext(parts) == 1
        with pytest.raises(dist.CallTimeout, match="no part within 3 s"):
            await anext(parts)
        await asyncio.sleep(1)
        assert stopped == [True]

    run_virtual(cluster(server, client))


async def test_messages_keep_their_order_and_wait_for_room() -> None:
    count = MESSAGES // 2 + 200

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            sending = [asyncio.create_task(pg.send_message(0, [pg.rank, n])) for n in range(count)]
            await asyncio.gather(*sending)
            await pg.barrier()
            return
        last = {1: -1, 2: -1}
        for _ in range(200):
            await asyncio.sleep(0)
        async for sender, (rank, number) in pg.messages():
            assert sender == rank
            assert number == last[rank] + 1
            last[rank] = number
            if last == {1: count - 1, 2: count - 1}:
                break
        await pg.barrier()

    await run_cluster(3, main)


async def test_messages_end_when_the_process_leaves() -> None:
    taken: list[Any] = []

    async def main(pg: ProcessGroup) -> asyncio.Task[None]:
        async def take() -> None:
            async for message in pg.messages():
                taken.extend([message])

        task = asyncio.create_task(take())
        await pg.send_message(1 - pg.rank, pg.rank)
        await pg.barrier()
        return task

    for task in await run_cluster(2, main):
        await task
    assert sorted(taken) == [(0, 0), (1, 1)]


async def test_a_message_that_waits_for_room_when_the_mailbox_closes_was_not_taken() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            while services_of(pg).mailbox.outside == deque():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return
        for number in range(MESSAGES):
            await pg.send_message(1, number)
        waiting = [asyncio.create_task(pg.send_message(1, number)) for number in range(3)]
        for one in waiting:
            with pytest.raises(dist.CallNotRun, match="its process leaves the job"):
                await one

    await run_cluster(2, main)


async def test_who_leaves_says_so() -> None:
    begun = asyncio.Event()

    async def main(pg: ProcessGroup) -> Any:
        if pg.rank:

            @pg.handler
            async def waits() -> None:
                begun.set()
                await asyncio.Event().wait()

            await begun.wait()
            return None
        with pytest.raises(dist.CallUnknown, match="its process leaves the job"):
            await pg.call(1, "waits")
        for _ in range(3):  # while it says goodbye, and after
            with pytest.raises(dist.CallNotRun):
                await pg.call(1, "waits", timeout=0.5)
        await pg.aclose()
        with pytest.raises(dist.GroupClosed, match="has left the job"):
            await pg.call(0, "waits")
        return None

    await run_cluster(2, main)


async def test_subgroups_name_processes_by_their_own_ranks() -> None:
    async def main(pg: ProcessGroup) -> Any:
        pg.handler(lambda: pg.rank, name="who")
        pair = await pg.new_group([1, 2])
        result = None
        if pair is not None:
            result = await pair.call(1 - pair.rank, "who")
            await pair.send_message(1 - pair.rank, "hello")
            assert await anext(pair.messages()) == (1 - pair.rank, "hello")
        await pg.barrier()
        return result

    assert await run_cluster(3, main) == [None, 2, 1]


async def test_nonsense_ends_a_connection_and_the_next_call_makes_another() -> None:
    go = asyncio.Event()

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def waits(value: int) -> int:
            if value:
                await go.wait()
            return value

    async def client(pg: ProcessGroup) -> None:
        for nonsense in [
            b"\xff" * 20,
            frame(Says.RESULT, 1),
            frame(Says.CALL, 1, b""),
            frame(Says.CANCEL, 999),
        ]:
            task = asyncio.create_task(pg.call(1, "waits", 5))
            assert await pg.call(1, "waits", 0) == 0
            services, uid, _rank, _limit = pg._calls._towards(1, None)
            caller = services.peers.by_uid[uid].caller
            assert caller is not None
            caller._connection._line.write(nonsense)
            with pytest.raises(dist.CallUnknown, match="without goodbye"):
                await task

    await cluster(server, client)


async def test_a_limit_holds_for_plain_functions_that_give_something_to_await() -> None:
    running: list[int] = []
    most: list[int] = []
    go = asyncio.Event()

    def server(pg: ProcessGroup) -> None:
        async def later(number: int) -> int:
            running.append(number)
            most.append(len(running))
            try:
                await go.wait()
            finally:
                running.remove(number)
            return number

        pg.handler(lambda number: later(number), name="work", limit=2)
        pg.handler(lambda: len(running), name="running", limit=1)

    async def client(pg: ProcessGroup) -> None:
        tasks = [asyncio.create_task(pg.call(1, "work", number)) for number in range(9)]
        while await pg.call(1, "running") < 2:
            pass
        tasks[1].cancel()  # its place goes to the next
        while 2 not in running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        tasks[5].cancel()  # it has none yet
        go.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [number for number in range(9) if results[number] == number] == [0, 2, 3, 4, 6, 7, 8]
        assert max(most) == 2
        assert await asyncio.gather(*(pg.call(1, "running") for _ in range(9))) == [0] * 9


async def test_calls_that_are_cancelled_at_once_leave_no_place_taken() -> None:
    begun: list[int] = []

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def waits(number: int) -> None:
            begun.append(number)
            await asyncio.Event().wait()

        @pg.handler(limit=1)
        async def alone(number: int) -> int:
            return number

    async def client(pg: ProcessGroup) -> None:
        for name in ("waits", "alone"):
            tasks = [asyncio.create_task(pg.call(1, name, number)) for number in range(10 * CALLS)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert await asyncio.gather(*(pg.call(1, "alone", number) for number in range(2 * CALLS))) == list(
            range(2 * CALLS)
        )
        assert len(begun) <= CALLS

    await cluster(server, client)


@pytest.mark.slow(COSTLY)
async def test_small_calls_go_between_the_pieces_of_large_ones() -> None:
    """Both ways; a small one need not wait for a large one, and large ones arrive as they were."""
    large = np.arange(4 << 20, dtype=np.int64)  # 32 MiB

    def server(pg: ProcessGroup) -> None:
        pg.handler(lambda value: value, name="echo")

        @pg.handler
        async def parts(count: int) -> AsyncIterator[Any]:
            for number in range(count):
                yield large[:: number + 1]
                yield number

    async def client(pg: ProcessGroup) -> None:
        big = [asyncio.create_task(pg.call(1, "echo", large[first:])) for first in range(3)]
        between = 0
        while not all(task.done() for task in big):
            assert await pg.call(1, "echo", between) == between
            between += 1
        assert between > 20
        for first, task in enumerate(big):
            assert np.array_equal(task.result(), large[first:])
        seen = [part async for part in pg.stream(1, "parts", 2)]
        assert seen[1::2] == [0, 1]
        assert np.array_equal(seen[2], large[::2])

    await cluster(server, client)


async def test_large_messages_keep_their_place() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            sizes = [900_000, 1, 300_000, 2, 3]
            await asyncio.gather(*(pg.send_message(1, bytes(size)) for size in sizes))
        else:
            taken = [len((await anext(pg.messages()))[1]) for _ in range(5)]
            assert taken == [900_000, 1, 300_000, 2, 3]
        await pg.barrier()

    await run_cluster(2, main)


async def test_a_large_call_that_is_cancelled_on_its_way_does_not_run() -> None:
    ran: list[int] = []

    def server(pg: ProcessGroup) -> None:
        pg.handler(lambda value: ran.append(len(value)), name="takes")
        pg.handler(lambda: None, name="small")

    async def client(pg: ProcessGroup) -> None:
        await pg.call(1, "small")
        services, uid, _rank, _limit = pg._calls._towards(1, None)
        caller = services.peers.by_uid[uid].caller
        assert caller is not None
        for turns in (0, 1, 2, 3):
            tasks = [asyncio.create_task(pg.call(1, "takes", bytes(1000_000))) for _ in range(60)]
            while len(caller.asking.calls) < 60:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[2:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while len(caller.asking.calls):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert 8 <= len(ran) < 100

    await cluster(server, client)
