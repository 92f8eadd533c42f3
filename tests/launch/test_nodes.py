"""Agents of several nodes over one store, in one loop: alarms, lost nodes, reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aiodist.launch.nodes import Nodes
from aiodist.launch.plan import Seat
from aiodist.launch.verdict import NodeReport
from aiodist.rendezvous.hash_store import HashStore

SEAT = Seat(
    node_rank=0,
    nnodes=2,
    first_rank=0,
    nproc=1,
    world_size=2,
    master_addr="127.0.0.1",
    master_port=1,
    store="",
    job="",
    secret="",
    host="h",
)


def nodes(store: HashStore, count: int, **more: float) -> list[Nodes]:
    return [Nodes(replace(SEAT, node_rank=n, nnodes=count), store, None, **more) for n in range(count)]


async def test_one_node_has_nobody_to_ask() -> None:
    alone = Nodes(replace(SEAT, nnodes=1), None, None)
    mine = NodeReport(0, "h")
    alone.watch(lambda _stop: None)
    assert await alone.take_turn() == 1
    await alone.alarm()
    await alone.publish(mine)
    assert await alone.reports(mine) == [mine]
    await alone.aclose()


@pytest.mark.parametrize("stop", [False, True])
async def test_an_alarm_reaches_the_others_and_turns_count(stop: bool) -> None:
    a, b = nodes(HashStore(), 2)
    heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    b.watch(heard.set_result)
    assert await a.take_turn() == 1
    await a.alarm(stop=stop)
    assert await heard is stop
    assert await b.take_turn() == 2
    await asyncio.gather(a.aclose(), b.aclose())


async def test_all_get_all_reports() -> None:
    members = nodes(HashStore(), 3)
    mine = [NodeReport(n, f"h{n}", turn=n) for n in range(3)]
    for member, report in zip(members, mine, strict=True):
        await member.publish(report)
    for member, report in zip(members, mine, strict=True):
        assert sorted(await member.reports(report), key=lambda r: r.node_rank) == mine
    await asyncio.gather(*(member.aclose() for member in members))


async def test_a_node_that_falls_silent_is_lost() -> None:
    a, b = nodes(HashStore(), 2, lease=0.2, beat=0.02)
    store = a._store
    assert store is not None
    await store.set("agents/alive/1", b"", ttl=0.1)
    trouble = asyncio.Event()
    a.watch(lambda _stop: trouble.set())
    await trouble.wait()
    assert a.lost == (1,)
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine]
    await asyncio.gather(a.aclose(), b.aclose())


async def test_a_node_that_has_reported_is_not_lost_when_it_goes() -> None:
    a, b = nodes(HashStore(), 2, lease=0.2, beat=0.02)
    await b.publish(NodeReport(1, "h1"))
    a.watch(lambda _stop: None)
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine, NodeReport(1, "h1")]
    await asyncio.gather(a.aclose(), b.aclose())


async def test_without_the_store_all_others_are_lost() -> None:
    store = HashStore()
    a, _b, _c = nodes(store, 3)
    trouble = asyncio.Event()
    a.watch(lambda _stop: trouble.set())
    await store.aclose()
    await trouble.wait()
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine]
    assert a.lost == (1, 2)
    await a.aclose()
