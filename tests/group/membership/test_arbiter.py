"""Both arbiters: one answer to everybody, and QuorumLost, in time, where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiodist.base.errors import Evicted, QuorumLost, RendezvousError
from aiodist.group.membership.arbiter import MajorityArbiter, StoreArbiter
from aiodist.group.membership.messages import MemberMessage, Prepare
from aiodist.group.membership.presence import begin_run
from aiodist.rendezvous import HashStore
from aiodist.testing import run_virtual

TOPIC = "epoch/1/1"


class Epoch:
    """Members that hear each other, unless they are in `deaf`; proof of the ends of those in `dead`."""

    def __init__(self, size: int) -> None:
        self.deaf: set[int] = set()
        self.dead: set[int] = set()
        self.members = [self._member(rank, size) for rank in range(size)]

    def _member(self, rank: int, size: int) -> MajorityArbiter:
        def send(target: int | None, message: MemberMessage) -> None:
            for other in range(size) if target is None else [target]:
                if other != rank and not {rank, other} & self.deaf:
                    asyncio.get_running_loop().call_soon(self.members[other].hear, rank, message)

        return MajorityArbiter(rank, size, send, lambda: self.dead)


def play(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await scene()

    return run_virtual(main())


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_majority_gives_one_answer_to_all(size: int) -> None:
    async def scene() -> list[bytes]:
        epoch = Epoch(size)
        asked = (member.rule(TOPIC, b"by %d" % rank, 5.0) for rank, member in enumerate(epoch.members))
        return list(await asyncio.gather(*asked))

    answers = play(scene)
    assert len(set(answers)) == 1
    assert answers[0] in {b"by %d" % rank for rank in range(size)}


def test_without_a_majority_there_is_no_answer_until_the_rest_is_proven_dead() -> None:
    async def scene() -> bytes:
        epoch = Epoch(4)
        epoch.deaf = {2, 3}
        with pytest.raises(QuorumLost, match="of the 4 members"):
            await epoch.members[0].rule(TOPIC, b"mine", 2.0)
        asking = asyncio.create_task(epoch.members[0].rule(TOPIC, b"mine", 2.0))
        await asyncio.sleep(1)
        epoch.dead = {3}
        epoch.members[0].recount()
        return await asking

    assert play(scene) == b"mine"


def test_whoever_has_promised_a_higher_ballot_to_another_asks_again_by_itself() -> None:
    async def scene() -> bytes:
        epoch = Epoch(3)
        for rank in (0, 1):
            epoch.members[rank].hear(2, Prepare(TOPIC, (9, 2)))
        await asyncio.sleep(0.1)
        epoch.deaf = {2}  # it dies before it proposes anything
        return await epoch.members[0].rule(TOPIC, b"mine", 2.0)

    assert play(scene) == b"mine"


def test_the_store_answers_whoever_asks_first() -> None:
    async def scene() -> list[bytes]:
        async with HashStore() as store:
            arbiters = [StoreArbiter(store) for _ in range(3)]
            asked = (arbiter.rule(TOPIC, b"by %d" % rank, 1.0) for rank, arbiter in enumerate(arbiters))
            return list(await asyncio.gather(*asked))

    assert play(scene) == [b"by 0"] * 3


def test_a_member_of_a_run_that_is_not_on_record_any_more_has_no_say() -> None:
    async def scene() -> None:
        async with HashStore() as store:
            shown: list[bool] = []

            async def show() -> None:
                shown.append(await store.check([f"ruling/first/{TOPIC}"]))

            first, second = StoreArbiter(store, "first", show), StoreArbiter(store, "second")
            await begin_run(store, "first")
            assert await first.rule(TOPIC, b"first", 1.0) == b"first"
            assert shown == [False]
            await begin_run(store, "second")
            for topic in (TOPIC, "another"):
                with pytest.raises(Evicted, match="begun anew"):
                    await first.rule(topic, b"again", 1.0)
                assert await second.rule(topic, b"second", 1.0) == b"second"

    play(scene)


class Silent(HashStore):
    """Does not answer."""

    async def compare_set(self, *_: object) -> bytes:
        await asyncio.sleep(1e6)
        return b""


class Broken(HashStore):
    """Answers with an error."""

    async def compare_set(self, *_: object) -> bytes:
        raise RendezvousError("the store is gone")


@pytest.mark.parametrize(("kind", "words"), [(Silent, "no answer"), (Broken, "store is gone")])
def test_no_answer_of_the_store_in_time(kind: type[HashStore], words: str) -> None:
    async def scene() -> None:
        async with kind() as store:
            with pytest.raises(QuorumLost, match=words):
                await StoreArbiter(store).rule(TOPIC, b"mine", 2.0)

    play(scene)
