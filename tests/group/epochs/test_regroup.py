"""From one epoch to the next: what each part does with news that comes late, or by another way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiodist.base.errors import PeerLost, RendezvousTimeout
from aiodist.group import ProcessGroup
from aiodist.group.control.messages import EVERYBODY, Message, Say
from aiodist.group.control.plane import ControlPlane
from aiodist.group.epochs.candidate import Candidate
from aiodist.group.epochs.convening import Convening
from aiodist.group.epochs.regroup import regroup_of
from aiodist.group.epochs.world import Settings, World
from aiodist.group.membership.assembly import Adopt, Assembly, Fail
from aiodist.group.membership.messages import Decided, MemberMessage, Ready, Void, decode, encode
from aiodist.group.membership.record import UID_BYTES, Record
from aiodist.testing import run_cluster
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork

UIDS = tuple(bytes([rank]) * UID_BYTES for rank in range(3))
NEWCOMER = b"n" * UID_BYTES


def test_proof_of_a_death_is_told_also_where_the_loss_was_known() -> None:
    plane = ControlPlane(0, 3)
    proven: list[int] = []
    plane.on_proven = proven.append
    plane.lose(1, "connection ended without goodbye")
    assert proven == []
    plane.lose(1, "process 4711 ended", proven=True)
    assert proven == [1]


async def test_who_is_lost_by_hearsay_is_not_waited_for_while_links_come_up() -> None:
    async def leave() -> None:
        pass

    settings = Settings("world", "job", "auto", {}, 30.0, inline=True)
    world = World(MemoryEndpoint(MemoryNetwork(), 0), 3, settings, leave)
    news = Message(Say.lost, 1, 1, EVERYBODY, 64, (2, "connection ended without goodbye", -1))
    world.control.received(1, news.encode())
    with pytest.raises(PeerLost) as caught:
        async with asyncio.timeout(25):
            await world._links.connect(30.0, asyncio.get_running_loop().time() + 30)
    assert caught.value.ranks == (2,)
    await world.abandon()


class Decisions:
    """An arbiter that has decided some calls already."""

    def __init__(self, *decided: Decided | Void) -> None:
        self.known = {f"epoch/1/{message.call}": message for message in decided}

    async def rule(self, topic: str, value: bytes, timeout: float) -> bytes:
        message = decode(value)
        assert isinstance(message, Decided | Void)
        return encode(self.known.setdefault(topic, message))


async def decided(arbiter: Decisions, call: int, message: Decided | Void) -> tuple[Any, list[MemberMessage]]:
    """What becomes of a call → its next step, and what was told."""
    told: list[MemberMessage] = []
    convening = Convening(
        *(cast("Any", SimpleNamespace()), cast("Any", SimpleNamespace()), arbiter),
        say=lambda target, message: told.append(message),
        changed=lambda: None,
        store_of=lambda number: None,
    )
    assembly = Assembly(call, 0, 0, UIDS)
    assembly.begin(Ready(call, 1, True, 0, ()), 10.0)
    await convening._decide(assembly, message)
    return assembly.next(0.0), told


def a_record(attempt: int) -> Record:
    return Record(1, (attempt, 0), UIDS)


async def test_a_call_that_was_decided_and_not_heard_of_holds_in_the_next_call() -> None:
    arbiter = Decisions(Decided(1, a_record(1)))
    assert (await decided(arbiter, 2, Decided(2, a_record(2))))[0] == Adopt(a_record(1))
    assert "epoch/1/2" not in arbiter.known


async def test_a_call_that_nobody_decided_is_void_for_good_when_the_next_is_decided() -> None:
    arbiter = Decisions()
    assert (await decided(arbiter, 2, Decided(2, a_record(2))))[0] == Adopt(a_record(2))
    assert isinstance(arbiter.known["epoch/1/1"], Void)
    step, _ = await decided(arbiter, 1, Decided(1, a_record(1)))  # whoever comes too late with it
    assert isinstance(step, Fail)


async def test_giving_a_call_up_asks_the_arbiter_too() -> None:
    void = Void(1, "3 came in time, 4 were asked for", False)
    step, told = await decided(Decisions(), 1, void)
    assert step == Fail(void.why)
    assert told == [void]
    step, told = await decided(Decisions(Decided(1, a_record(1))), 1, void)
    assert step == Adopt(a_record(1))
    assert told == []


async def test_an_answer_about_another_call_is_none() -> None:
    arbiter = Decisions()
    arbiter.known["epoch/1/1"] = Void(7, "of another call", False)
    with pytest.raises(Exception, match="no decision on call 1"):
        await decided(arbiter, 1, Decided(1, a_record(1)))


async def test_a_decision_is_also_heard_in_the_new_epochs_world() -> None:
    async def main(pg: ProcessGroup) -> None:
        old = regroup_of(pg)
        assert old is not None
        record = Record(pg.epoch, (1, 0), tuple(old.uids))
        assembly = Assembly(1, pg.epoch - 1, pg.rank, old.uids)
        assembly.begin(Ready(1, 1, True, 0, ()), 1e9)
        draft = old._listen(assembly, record, old._world, pg)
        draft.listener.hear(1, Decided(1, record))
        assert assembly.next(0.0) == Adopt(record)

    await run_cluster(2, main)


async def test_members_are_not_given_up_for_a_connection_that_ended_with_a_draft() -> None:
    async def main(pg: ProcessGroup) -> None:
        regroup = regroup_of(pg)
        assert regroup is not None
        blamed = [regroup.uids[1], NEWCOMER]
        lost = SimpleNamespace(error=PeerLost([1, 2], "it is not in the network"), culprits=blamed)
        late = SimpleNamespace(error=RendezvousTimeout("rank 1 did not come", missing=[1]), culprits=blamed)
        assert regroup._culprits(cast("Candidate[Any]", lost)) == (NEWCOMER,)
        assert regroup._culprits(cast("Candidate[Any]", late)) == tuple(blamed)

    await run_cluster(2, main)


class Slow:
    """Tasks that take a while to end."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def task(self, name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.ended.append(name)

    async def nothing(self) -> None:
        pass


async def begin(*tasks: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    begun = [asyncio.create_task(task) for task in tasks]
    await asyncio.sleep(0)
    return begun


async def test_convening_leaves_no_task_behind_when_stopping_is_cancelled() -> None:
    slow = Slow()
    nothing = cast("Any", SimpleNamespace())
    convening = Convening(
        *(nothing, nothing, Decisions()),
        say=lambda target, message: None,
        changed=lambda: None,
        store_of=lambda number: None,
    )
    convening._inviting, convening._ruling = await begin(slow.task("inviting"), slow.task("ruling"))
    (stopping,) = await begin(convening.stop())
    stopping.cancel()
    await asyncio.wait([stopping])
    assert convening._inviting.done()
    assert convening._ruling.done()


async def test_a_draft_is_abandoned_also_when_its_closing_is_cancelled() -> None:
    happened: list[str] = []

    async def abandon(group: object, reason: str) -> None:
        happened.append(reason)

    (forming,) = await begin(Slow().task("forming"))
    group = SimpleNamespace(aclose=Slow().nothing)
    draft = SimpleNamespace(_task=forming, _world=SimpleNamespace(abandon=abandon), _group=group)
    (closing,) = await begin(Candidate.close(cast("Candidate[Any]", draft)))
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert happened == ["another draft became the epoch"]
