"""Agents of several nodes over one store, in one loop: alarms, lost nodes, reports, decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aiodist.base.errors import WireError
from aiodist.launch.nodes.local_node import LocalNode
from aiodist.launch.nodes.messages import Next, Workers, failure, late_in
from aiodist.launch.nodes.nodes import Listener, Nodes
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.launch.verdict import NodeReport, Verdict
from aiodist.rendezvous.hash_store import HashStore
from tests.waiting import until_so

ACCESS = StoreAccess("j", "s")


def roster(count: int, **more: int) -> Roster:
    return Roster.of([Member(n, f"h{n}", n + 1) for n in range(count)], store_port=9, master_port=7, **more)


def local(id: int) -> LocalNode:
    return LocalNode(id, "127.0.0.1", "127.0.0.1", ACCESS, f"h{id}")


def nodes(store: HashStore, count: int, **more: float) -> list[Nodes]:
    return [Nodes(local(n), roster(count), store, None, **more) for n in range(count)]


def listener() -> tuple[Listener, asyncio.Queue[object]]:
    """What it hears: why there is trouble, and who is missed."""
    heard: asyncio.Queue[object] = asyncio.Queue()
    return Listener(heard.put_nowait, heard.put_nowait), heard


async def close(*members: Nodes) -> None:
    await asyncio.gather(*(member.aclose() for member in members))


def test_places() -> None:
    place = Nodes(local(1), roster(3), HashStore()).place
    assert (place.node_rank, place.nnodes, place.first_rank, place.nproc, place.world_size) == (1, 3, 1, 2, 6)
    assert (place.store, place.master_port, place.newcomer) == ("127.0.0.1:9", 7, False)
    assert place.secret == ACCESS.of_workers.secret
    late = Nodes(local(3), roster(3).grown(Member(3, "h3", 4)), HashStore()).place
    assert (late.node_rank, late.nnodes, late.first_rank, late.world_size) == (3, 4, 6, 10)
    assert late.newcomer
    early = Nodes(local(0), roster(3).grown(Member(3, "h3", 4)), HashStore()).place
    assert (early.nnodes, early.world_size) == (3, 6), "what its workers were told stays"


async def test_one_node_has_nobody_to_ask() -> None:
    alone = Nodes(local(0), roster(1), None)
    mine = NodeReport(0, "h")
    ears, _ = listener()
    await alone.watch(ears)
    assert await alone.take_turn() == 1
    await alone.alarm()
    await alone.publish(mine)
    await alone.say_workers(Workers((), False))
    assert await alone.others() == Workers((), False)
    assert [await alone.restarts(), await alone.take_restart(), await alone.restarts()] == [0, 1, 1]
    assert await alone.reports(mine) == [mine]
    await alone.aclose()


@pytest.mark.parametrize("why", ["failure", "regroup"])
async def test_an_alarm_reaches_the_others_and_turns_count(why: str) -> None:
    a, b = nodes(HashStore(), 2)
    ears, heard = listener()
    await b.watch(ears)
    assert await a.take_turn() == 1
    await a.alarm(why)
    assert await heard.get() == why
    assert await b.take_turn() == 2
    await close(a, b)


def test_an_alarm_may_name_ranks_that_others_waited_for() -> None:
    assert [failure(()), failure({7, 3})] == ["failure", "late 3 7"]
    assert [late_in("failure"), late_in("late 3 7"), late_in("late"), late_in("")] == [(), (3, 7), (), ()]
    assert [late_in("late x"), late_in("late -1"), late_in("late " + "1" * 5000), late_in("late ²")] == [
        ()
    ] * 4
    assert late_in(failure(range(1000))) == tuple(range(64))


async def test_an_alarm_is_of_its_attempt() -> None:
    store = HashStore()
    a, b = nodes(store, 2)
    await a.alarm()
    await b.enter(roster(2, attempt=1))
    ears, heard = listener()
    await b.watch(ears)
    await a.enter(roster(2, attempt=1))
    await a.stop(15)
    assert await heard.get() == "stop"
    assert await store.get("agents/stop") == b"15"
    await close(a, b)


async def test_restarts_are_counted_together() -> None:
    a, b = nodes(HashStore(), 2)
    assert [await a.take_restart(), await b.take_restart(), await a.restarts()] == [1, 2, 2]
    await close(a, b)


async def test_what_the_others_do() -> None:
    a, b, c = nodes(HashStore(), 3)
    assert await a.others() == Workers((1, 2, 3, 4, 5), False)
    await b.say_workers(Workers((2,), True))
    assert await a.others() == Workers((2, 3, 4, 5), True)
    await c.say_workers(Workers((), False))
    assert await a.others() == Workers((2,), True)
    await c.say_workers(Workers((4,), False))
    c._lost[1].set()
    assert await a.others() == Workers((2, 4), True)
    assert await c.others() == Workers((0,), False), "of a lost node nothing counts"
    await close(a, b, c)


async def test_all_get_all_reports() -> None:
    members = nodes(HashStore(), 3)
    mine = [NodeReport(n, f"h{n}", turn=n) for n in range(3)]
    for member, report in zip(members, mine, strict=True):
        await member.publish(report)
    for member, report in zip(members, mine, strict=True):
        assert sorted(await member.reports(report), key=lambda r: r.node_rank) == mine
    await close(*members)


async def test_the_report_of_a_node_that_came_late_is_waited_for() -> None:
    store = HashStore()
    head, a = nodes(store, 2)
    grown = roster(2).grown(Member(5, "h5", 1))
    await store.set("agents/0/roster", grown.to_json())
    late = Nodes(local(5), grown, store)
    reports = [NodeReport(n, "h") for n in range(3)]
    for member, report in zip((head, a, late), reports, strict=True):
        await member.publish(report)
    assert sorted(await a.reports(reports[1]), key=lambda r: r.node_rank) == reports
    await close(head, a, late)


async def test_a_node_that_falls_silent_is_lost() -> None:
    a, b = nodes(HashStore(), 2, lease=30.0, beat=0.02)
    assert a.store is not None
    await a.store.set("agents/alive/1", b"", ttl=0.1)
    ears, heard = listener()
    changed = asyncio.Event()
    a.changed = changed.set
    await a.watch(ears)
    assert await heard.get() == (1,)
    assert a.lost == (1,) and a.alive == {0}
    assert changed.is_set()
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine]
    await close(a, b)


async def test_a_node_that_was_gone_before_anybody_looked_is_lost() -> None:
    """One that came late would wait for the report of such a node for ever."""
    store = HashStore()
    late = Nodes(local(3), roster(3).grown(Member(3, "h3", 4)), store, lease=30.0, beat=0.02)
    await late.expect(store, 2, 30.0)
    ears, heard = listener()
    await late.watch(ears)
    assert await heard.get() == (1,)
    mine = NodeReport(3, "h")
    for node in (0, 2):
        await store.set(f"agents/0/report/{node}", NodeReport(node, "h").to_json())
    assert [report.node_rank for report in await late.reports(mine)] == [3, 0, 2]
    assert heard.empty()
    await late.aclose()


async def test_who_listens_hears_of_a_loss_before() -> None:
    """In the moment between two attempts nobody listens."""
    a, b = nodes(HashStore(), 2, lease=30.0, beat=0.02)
    nobody, _ = listener()
    await a.watch(nobody)
    await a.enter(roster(2, attempt=1))
    await until_so(lambda: a.lost == (1,))
    ears, heard = listener()
    await a.watch(ears)
    assert await heard.get() == (1,)
    await close(a, b)


async def test_a_node_that_has_reported_is_not_lost_when_it_goes() -> None:
    a, b = nodes(HashStore(), 2, lease=30.0, beat=0.02)
    await b.publish(NodeReport(1, "h1"))
    ears, _ = listener()
    await a.watch(ears)
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine, NodeReport(1, "h1")]
    await close(a, b)


async def test_who_was_given_up_by_the_others_notices() -> None:
    """It slept for longer than its lease: the others have gone on without it."""
    store = HashStore()
    a, b = nodes(store, 2, lease=30.0, beat=0.01)
    ears, heard = listener()
    await b.watch(ears)
    await store.get("agents/alive/1")
    await store.delete_key("agents/alive/1")
    assert await heard.get() == "failure"
    assert b.lost == (0,)
    await close(a, b)


async def test_without_the_store_all_others_are_lost() -> None:
    store = HashStore()
    a, _b, _c = nodes(store, 3)
    ears, heard = listener()
    await a.watch(ears)
    await store.aclose()
    assert await heard.get() == "failure"
    mine = NodeReport(0, "h")
    assert await a.reports(mine) == [mine]
    assert a.lost == (1, 2)
    assert await a.next(Verdict(1)) == Next()
    await a.aclose()


class Stuck(HashStore):
    """It answers no questions about what there is, as if its host were cut off; `answer` heals it."""

    def __init__(self) -> None:
        super().__init__()
        self.healed = False
        self.asked = asyncio.Event()

    async def list_keys(self, prefix: str = "") -> list[str]:
        self.asked.set()
        if not self.healed:
            await asyncio.Event().wait()
        return await super().list_keys(prefix)

    async def check(self, keys: Sequence[str]) -> bool:
        if not self.healed:
            await asyncio.Event().wait()
        return await super().check(keys)


async def test_who_is_cut_off_has_lost_node_0_alone_and_waits_for_nothing() -> None:
    store = Stuck()
    _, b, _ = nodes(store, 3, lease=0.05)
    ears, heard = listener()
    await b.watch(ears)
    assert await heard.get() == "failure"
    assert b.lost == (0,), "of the others it knows nothing"
    mine = NodeReport(1, "h1")
    await b.publish(mine)
    assert await b.take_turn() == 1
    assert await b.others() == Workers((), False)
    assert await store.num_keys() == 0, "it tells a job that gave it up nothing any more"
    assert await b.reports(mine) == [mine]
    assert await b.next(Verdict(1)) == Next()
    await b.aclose()


async def test_nobody_waits_for_the_decision_of_a_lost_head() -> None:
    _, b, c = nodes(HashStore(), 3)
    waiting = asyncio.create_task(b.next(Verdict(1)))
    await asyncio.sleep(0)
    b._lost[2].set()
    await asyncio.sleep(0)
    assert not waiting.done(), "the head goes on without node 2"
    for node in (b, c):
        node._lost[0].set()
    assert [await waiting, await c.next(Verdict(1))] == [Next(), Next()]
    await close(b, c)


class Decides:
    """A head that is asked for nothing."""

    code = 0

    async def aclose(self, lost: Sequence[int] = ()) -> None: ...


async def test_a_head_that_was_stopped_looks_who_is_left() -> None:
    store = Stuck()
    head = Nodes(local(0), roster(3), store, Decides(), lease=0.05, beat=0.01)  # type: ignore[arg-type]
    ears, heard = listener()
    await head.watch(ears)
    await store.asked.wait()
    store.asked.clear()
    await store.asked.wait()  # it asks again
    assert (head.lost, heard.empty()) == ((), True)
    await store.set("agents/alive/1", b"")
    await store.set("agents/alive/2", b"")
    store.healed = True
    assert await store.get("agents/alive/0") == b""
    await store.delete_key("agents/alive/2")
    assert await heard.get() == (2,)
    await head.aclose()


async def test_who_lost_touch_renews_its_lease_in_the_next_attempt() -> None:
    store = Stuck()
    _, b = nodes(store, 2, lease=0.05)
    ears, heard = listener()
    await b.watch(ears)
    assert await heard.get() == "failure"
    store.healed = True
    b.lease = 30.0
    await b.enter(roster(2, attempt=1))
    await b.watch(ears)
    assert await store.get("agents/alive/1") == b""
    await b.aclose()


async def test_the_heads_decision() -> None:
    store = HashStore()
    a, b, c = nodes(store, 3)
    again = Next(Roster.of([Member(0, "h0", 1), Member(1, "h1", 2)], attempt=1), used=1)
    await store.set("agents/0/next", again.to_json())
    assert await b.next(Verdict(1)) == again
    refused = await c.next(Verdict(1))
    assert refused.roster is None and "had lost this one" in refused.error
    assert again.roster is not None
    await b.enter(again.roster)
    assert (b.place.nnodes, b.lost, b.key("x")) == (2, (), "agents/1/x")
    await close(a, b, c)


def test_a_decision_survives_json() -> None:
    for before in (Next(), Next(signum=2, error="é", used=3), Next(roster(2), used=1)):
        assert Next.from_json(before.to_json()) == before


@pytest.mark.parametrize("data", [b"", b"[]", b'{"used": "1"}', b'{"roster": {"members": 3}}', b"\xff"])
def test_a_broken_decision_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Next.from_json(data)
