"""The head without other processes: who is let in, what follows an attempt, how long it waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from aiodist.base.errors import RendezvousTimeout, UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.admission import OverError, request_place
from aiodist.launch.nodes.head import Head
from aiodist.launch.nodes.meeting import meet
from aiodist.launch.nodes.messages import Next
from aiodist.launch.nodes.nodes import ELASTIC, Listener, Nodes
from aiodist.launch.nodes.roster import Member
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.launch.verdict import Ending, Verdict
from tests.ports import free_port

SECRET = {"AIODIST_SECRET": "s", "AIODIST_JOB": "j"}
FAILED = Verdict(7, endings=(Ending(0, 0, 0, "h", 1, 7, 1),))
WELL = Verdict(0, endings=(Ending(0, 0, 0, "h", 1, 0, 1),))


def silent(_text: str) -> None:
    pass


@pytest.fixture
def config() -> LaunchConfig:
    port = free_port()
    return LaunchConfig(
        ("true",), nnodes=1, max_nodes=3, last_call=0.0, node_rank=None, master_port=port, meet_timeout=100
    )


@asynccontextmanager
async def met(*configs: LaunchConfig) -> AsyncIterator[list[Nodes]]:
    """Agents of several nodes that have met; those that did not leave are closed in the end."""
    found: list[Nodes] = []
    try:
        tasks = []
        for config in configs:
            tasks.append(asyncio.create_task(meet(config, SECRET, silent)))
            await asyncio.sleep(0)
        found = await asyncio.gather(*tasks)
        yield found
    finally:
        others = [node for node in found if node.head is None]
        await asyncio.gather(*(node.aclose() for node in others))
        await asyncio.gather(*(node.aclose() for node in found if node.head is not None))


def listening() -> tuple[Listener, asyncio.Queue[object]]:
    heard: asyncio.Queue[object] = asyncio.Queue()
    return Listener(heard.put_nowait, heard.put_nowait), heard


async def begin(node: Nodes) -> asyncio.Queue[object]:
    listener, heard = listening()
    await node.watch(listener)
    if node.head is not None:
        node.head.attend(node)
    return heard


async def test_restarts_of_one_node_until_they_are_used_up() -> None:
    node = await meet(LaunchConfig(("true",), max_restarts=1), {}, silent)
    store = node.place.store
    again = await node.next(FAILED)
    assert again.roster is not None
    assert (again.used, again.roster.attempt, again.roster.restarts) == (1, 1, 1)
    await node.enter(again.roster)
    assert node.place.store != store, "a store of its own"
    assert await node.next(FAILED) == Next(used=1)
    await node.aclose()


async def test_the_operator_ends_a_wait_for_a_restart() -> None:
    node = await meet(LaunchConfig(("true",), max_restarts=9), {}, silent)
    for _ in range(3):
        node.head._backoff.delay(0.0)  # type: ignore[union-attr]
    waiting = asyncio.create_task(node.next(FAILED))
    await asyncio.sleep(0)
    await node.stop(15)
    assert await waiting == Next(signum=15, used=1)
    await node.aclose()


async def test_a_late_node_gets_a_seat_in_an_elastic_job(config: LaunchConfig) -> None:
    async with met(config) as [head]:
        await begin(head)
        async with await head._workers_store() as store:
            await store.set(ELASTIC, b"1")
        late = await meet(replace(config, nproc=2), SECRET, silent)
        assert (late.place.node_rank, late.place.first_rank, late.place.newcomer) == (1, 1, True)
        assert late.place.store == head.place.store
        assert head.roster == late.roster
        await late.aclose()


async def test_a_late_node_makes_an_inelastic_job_begin_again(config: LaunchConfig) -> None:
    async with met(config) as [head]:
        heard = await begin(head)
        coming = asyncio.create_task(meet(config, SECRET, silent))
        assert await heard.get() == "regroup"
        stopped = Verdict(0, endings=(Ending(0, 0, 0, "h", 1, -15, 1, asked=15),))
        following = await head.next(stopped)
        late = await coming
        assert following.roster is not None
        assert late.roster == following.roster
        assert (late.place.nnodes, late.place.newcomer, following.used) == (2, False, 0)
        await late.aclose()


async def test_who_waits_when_the_job_ends_is_told_how(config: LaunchConfig) -> None:
    full = replace(config, nnodes=2, max_nodes=0, max_restarts=1)
    async with met(full, full) as nodes:
        head = next(node for node in nodes if node.head is not None)
        await begin(head)
        spare = asyncio.create_task(meet(full, SECRET, silent))
        assert isinstance(head.head, Head)
        head.head.code = 3
        while not head.head._admission.waiting:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(OverError) as info:
        await spare
    assert info.value.code == 3


async def test_a_node_with_another_range_is_refused_and_the_job_goes_on(config: LaunchConfig) -> None:
    async with met(config) as [head]:
        await begin(head)
        with pytest.raises(UsageError, match=r"node 0 says --nnodes 1:3, .* says --nnodes 1:4"):
            await meet(replace(config, max_nodes=4), SECRET, silent)


async def test_the_least_is_waited_for(config: LaunchConfig) -> None:
    with pytest.raises(RendezvousTimeout, match=r"only 1 of at least 2 nodes came to 127.0.0.1:\d+ within"):
        await meet(replace(config, nnodes=2, meet_timeout=0.5), SECRET, silent)


async def test_a_node_that_leaves_while_others_are_awaited_does_not_count(config: LaunchConfig) -> None:
    config = replace(config, nnodes=3)
    head = asyncio.create_task(meet(config, SECRET, silent))
    access = StoreAccess("j", "s")
    assert config.master_port is not None
    book = await access.enter("127.0.0.1", config.master_port, 20)
    guest = asyncio.create_task(request_place(config, book, "guest"))
    watch = book.watch("agents/card/")
    assert (await anext(watch)).value is not None
    await watch.aclose()
    guest.cancel()
    await asyncio.gather(guest, return_exceptions=True)
    await book.delete_key("agents/card/1")
    await book.aclose()
    others = [asyncio.create_task(meet(config, SECRET, silent)) for _ in range(2)]
    nodes = await asyncio.gather(head, *others)
    assert sorted(member.id for member in nodes[0].roster.members) == [0, 2, 3]
    await asyncio.gather(*(node.aclose() for node in nodes))


async def test_nobody_is_admitted_twice_on_one_node_rank(config: LaunchConfig) -> None:
    config = replace(config, nnodes=2, max_nodes=0, max_restarts=1)
    async with met(replace(config, node_rank=0), replace(config, node_rank=1)) as [head, other]:
        await begin(head)
        with pytest.raises(UsageError, match="--node-rank 1 was taken already"):
            await meet(replace(config, node_rank=1), SECRET, silent)
        assert [member.wanted for member in other.roster.members] == [0, 1]


@pytest.mark.parametrize(("wanted", "missing"), [((0, 2), [1, 3]), ((0, None), [2, 3])])
async def test_who_is_missing_is_named_by_node_rank(
    wanted: tuple[int | None, ...], missing: list[int]
) -> None:
    config = LaunchConfig(("true",), nnodes=4, node_rank=0, master_port=1)
    head = Head(config, Member(0, "h", 1, 0), StoreAccess("j", "s"), "127.0.0.1", silent)
    assert head._missing([Member(n, "h", 1, rank) for n, rank in enumerate(wanted)]) == missing
