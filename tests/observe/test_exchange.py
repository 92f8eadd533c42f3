"""What one host shows reaches who asks on another, by the job's store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aiodist.observe import exchange
from aiodist.observe.exchange import ASKED, ViewExchange, gather
from aiodist.observe.view import RankView
from aiodist.rendezvous import HashStore
from tests.observe.made import a_rank, a_record

HERE = a_rank(0, [a_record(number=number) for number in range(5)])
THERE = [a_rank(rank, [a_record(number=number) for number in range(5)], host="host-b") for rank in (1, 2)]


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> list[RankView]:
    """What is seen on the other host."""
    shown = list(THERE)
    monkeypatch.setattr(exchange, "read_ranks", lambda key: shown)
    monkeypatch.setattr(exchange, "host_name", lambda: "host-b")
    return shown


async def asked(store: HashStore, other: ViewExchange, **more: Any) -> list[RankView]:
    """What is gathered while the other host looks for wishes all the time."""
    task = asyncio.ensure_future(gather(store, 3, [HERE], **more))
    while not task.done():
        other._begin()
        await asyncio.sleep(0.01)
    return await task


async def test_the_other_host_answers() -> None:
    store = HashStore()
    asks: list[int] = []

    def ask(views: list[RankView]) -> list[RankView]:
        asks.append(len(views))
        return views

    other = ViewExchange(asyncio.get_running_loop(), lambda: store, "cafe", ask)
    found = await asked(store, other, most=2, stacks=False)
    assert [view.rank for view in found] == [0, 1, 2]
    assert [len(view.recording.last) for view in found] == [5, 2, 2]
    assert asks == []
    assert await store.list_keys(ASKED) == []
    await asked(store, other, most=2, stacks=True)
    assert asks == [2]
    other.close()


async def test_without_an_answer_there_is_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", 0.2)
    assert await gather(HashStore(), 3, [HERE], most=1, stacks=False) == [HERE]


async def test_answers_that_cannot_be_read_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", 0.3)
    monkeypatch.setattr(exchange, "pack", lambda views, most: b"nonsense")
    store = HashStore()
    other = ViewExchange(asyncio.get_running_loop(), lambda: store, "cafe", lambda views: views)
    assert await asked(store, other, most=1, stacks=False) == [HERE]
    other.close()


@pytest.mark.parametrize(
    "wish", [b"", b"[]", b"3", b'{"most": 2}', b'{"most": Infinity, "stacks": 0}', b"\xff"]
)
async def test_a_wish_that_cannot_be_read_is_passed_over(
    wish: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiodist.observe")
    monkeypatch.setattr(exchange, "PATIENCE", 0.2)
    store = HashStore()
    await store.set(f"{ASKED}somebody", wish)
    other = ViewExchange(asyncio.get_running_loop(), lambda: store, "cafe", lambda views: views)
    found = await asked(store, other, most=1, stacks=False)
    assert [view.rank for view in found] == [0, 1, 2]  # who asks well is answered
    assert "cannot be read" in caplog.text
    other.close()


async def test_a_rank_gathers_from_another_thread() -> None:
    store = HashStore()
    loop = asyncio.get_running_loop()
    other = ViewExchange(loop, lambda: store, "cafe", lambda views: views)
    mine = ViewExchange(loop, lambda: store, "cafe", lambda views: views)
    task = asyncio.ensure_future(asyncio.to_thread(mine.gather, [HERE]))
    while not task.done():
        other.poll()
        await asyncio.sleep(0.01)
    assert sorted({view.rank for view in await task}) == [0, 1, 2]
    other.close()
    mine.close()


async def test_a_rank_whose_loop_ends_while_it_gathers_has_what_it_saw() -> None:
    loop = asyncio.get_running_loop()
    mine = ViewExchange(loop, HashStore, "cafe", lambda views: views)
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(asyncio.to_thread(mine.gather, [HERE]))
    asking: set[asyncio.Task[object]] = set()
    for _ in range(1_000_000):
        if asking := asyncio.all_tasks() - before - {task}:
            break
        await asyncio.sleep(0)
    for one in asking:  # as asyncio.run does at its end
        one.cancel()
    assert await task == [HERE]
    mine.close()


async def test_a_wish_of_any_size_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    assert exchange._wish(b'{"most": 2, "stacks": ' + b" " * 5000 + b"0}") is None
