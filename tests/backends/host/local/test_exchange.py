"""What all operations have in common: they meet in a slot, and tell whether a peer does something else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.host.local import board
from aiodist.backends.host.local.board import (
    CODE,
    FILL,
    OUT,
    RESULT,
    SLOTS,
    SOURCE,
    TOOK,
    TOOK_OUT,
)
from aiodist.backends.host.local.direct import Meet
from aiodist.backends.host.local.exchange import Exchange, Steps
from aiodist.backends.host.local.plan import Path, Plan, digest_of
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Kind
from tests.backends.host.local.members import Member, call_of, run

BYTE = np.zeros(1, np.uint8)


class Pass(Exchange):
    """Every rank hands its number on, some block at a time, and waits until all have seen it."""

    __slots__ = ("said",)

    def begin(self) -> None:
        self.said: dict[int, int] = {}
        rank = self.plan.board.rank
        self.publish(100 + rank, 200 + rank, 1)

    def steps(self) -> Steps:
        peers = self.plan.board.peers
        yield from self.arrivals(peers)
        self.said = {peer.member: self.word(peer, SOURCE) + self.word(peer, RESULT) for peer in peers}
        self.put(TOOK, 3)
        yield from self.reached(peers, TOOK, 3)


def meet(member: Member, seq: int = 0, detail: str = "") -> Exchange:
    return member.begin(Meet, call_of(Kind.barrier, BYTE, seq, detail=detail), path=Path.meet)


def passing(member: Member, seq: int = 0) -> Exchange:
    return member.begin(Pass, call_of(Kind.barrier, BYTE, seq), path=Path.bulk)


async def test_nobody_passes_before_the_last_has_come(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    running = [(member, meet(member)) for member in group[:2]]
    assert run(running) == running
    running.append((group[2], meet(group[2])))
    assert run(running) == []


async def test_who_makes_the_group_later_is_waited_for(hubs: Any, join: Any) -> None:
    first, second = hubs(2)
    mine = Member(first, 7, 2, 0)
    exchange = meet(mine)
    assert not mine.step(exchange)
    theirs = Member(second, 7, 2, 1)
    assert not mine.step(exchange)
    assert run([(mine, exchange), (theirs, meet(theirs))]) == []
    for member in (mine, theirs):
        member.close()


async def test_publishing_wipes_what_the_slot_held_and_says_where_data_lies(hubs: Any, join: Any) -> None:
    group = join(hubs(2))
    for seq in (5, 5 + SLOTS):
        running = [(member, passing(member, seq)) for member in group]
        for member, exchange in running:
            words = [member.board.words[exchange.base + word] for word in range(RESULT + 1)]
            found = dict(zip((CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT), words, strict=True))
            assert found == {
                CODE: exchange.plan.digest | seq + 1,
                FILL: 1,
                TOOK: 0,
                OUT: 0,
                TOOK_OUT: 0,
                SOURCE: 100 + member.rank,
                RESULT: 200 + member.rank,
            }
            peer = group[1 - member.rank].board.peers[0]
            assert group[1 - member.rank].board.found(peer)
            signed = group[1 - member.rank].board.signature_of(peer, seq)
            assert exchange.operation is not None
            assert signed == exchange.operation.call.signature
        assert run(running) == []
        for member, exchange in running:
            assert isinstance(exchange, Pass)
            assert exchange.said == {1 - member.rank: 300 + 2 * (1 - member.rank)}
            assert exchange.moves == 2


async def test_waits_for_a_word_of_every_peer(hubs: Any, join: Any) -> None:
    group = join(hubs(3))
    running = [(member, passing(member)) for member in group]
    for member, exchange in running[:2]:
        assert not member.step(exchange)
        assert not member.step(exchange)
    late = running[2][1]
    late.put(TOOK, 2)
    assert not group[0].step(running[0][1])
    late.put(TOOK, 3)
    assert group[0].step(running[0][1])


async def test_words_ring_whoever_waits_for_them(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    exchange = passing(first)
    rung: list[int] = []
    exchange.ring = lambda: rung.append(first.board.words[exchange.base + FILL])
    exchange.put(FILL, 9)
    assert rung == [9]  # after the word was written
    assert exchange.moves == 2
    passing(second)
    exchange.put(FILL, 10)
    assert rung == [9, 10]


@pytest.mark.parametrize("detail", ["something else", ""])
async def test_peer_that_does_something_else_is_reported_once(hubs: Any, join: Any, detail: str) -> None:
    group = join(hubs(3))
    calls = [meet(group[0]), meet(group[1], detail=detail), meet(group[2])]
    running = list(zip(group, calls, strict=True))
    left = run(running)
    for _ in range(3):
        run(left)
    if not detail:
        assert left == []
        assert [member.disagreed for member in group] == [[], [], []]
    else:
        assert left == running
        assert [member.disagreed for member in group] == [[(0, 1)], [(0, 0)], [(0, 1)]]


async def test_what_a_slot_held_before_is_no_disagreement(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    assert run([(first, meet(first, 3)), (second, meet(second, 3))]) == []
    mine = meet(first, 3 + SLOTS, detail="the next")
    assert run([(first, mine)]) == [(first, mine)]
    assert first.disagreed == []
    assert run([(first, mine), (second, meet(second, 3 + SLOTS, detail="the next"))]) == []


async def test_as_many_as_there_are_slots_run_at_a_time(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    ahead = [(first, meet(first, seq)) for seq in range(SLOTS)]
    assert run(ahead) == ahead
    assert not first.board.free(SLOTS)
    behind = [(second, meet(second, seq)) for seq in reversed(range(SLOTS))]
    assert run(ahead + behind, seed=4) == []
    assert first.board.free(2 * SLOTS - 1)
    assert not first.board.free(2 * SLOTS)


async def test_member_that_leaves_has_met_who_comes_later(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    mine, theirs = meet(first), meet(second)
    assert run([(first, mine)]) == []
    first.leave()
    first.hub.take(64)  # clears away what nobody reads
    assert run([(second, theirs)]) == []
    first.hub.take(64)
    assert first.board.bytes.size  # the other one may look for more, until it leaves
    second.leave()
    first.hub.take(64)
    assert not first.board.bytes.size


async def test_member_that_left_before_is_waited_for_in_vain(hubs: Any, join: Any) -> None:
    first, second = join(hubs(2))
    first.leave()
    first.hub.take(64)
    waits = [(second, meet(second))]
    assert run(waits) == waits
    assert second.disagreed == []


@pytest.mark.parametrize("bits", [7, 16])
async def test_the_word_that_publishes_is_never_zero_and_holds_both(
    hubs: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "NUMBER_BITS", bits)
    (hub,) = hubs(1)
    member = Member(hub, 7, 1, 0)

    def code(plan: Plan, seq: int) -> int:
        exchange = Meet(plan, seq)
        exchange.reset(seq, [], [])
        return exchange.code

    @given(st.integers(0, 1 << 30), st.integers(0, 1 << 40))
    def check(count: int, seq: int) -> None:
        like = SimpleNamespace(dtype=BYTE.dtype, shape=(count,))
        plan = Plan(member.board, call_of(Kind.barrier, like), Path.meet, Thresholds(), member)
        word = code(plan, seq)
        assert 0 < word < 1 << 64
        assert word >> 16 == digest_of(plan.call)
        assert word & 0xFFFF == (seq + 1) % (1 << bits)
        for later in range(1, SLOTS + 1):  # what a slot held before is no later operation
            assert word != code(plan, seq + later)

    check()
    member.close()
