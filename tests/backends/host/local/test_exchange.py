"""What all operations have in common: they meet in a slot, and tell whether a peer does something else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist._engine.exchange import Exchange
from aiodist.backends.host.local import board
from aiodist.backends.host.local.board import FILL, OUT, RESULT, SLOTS, SOURCE, TOOK, TOOK_OUT
from aiodist.backends.host.local.hub import ASLEEP_BULK, ASLEEP_LOOP
from aiodist.backends.host.local.plan import Path, plan_of
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Kind, ReduceOp
from tests.backends.host.local.members import Member, call_of, run

BYTE = np.zeros(1, np.uint8)


def meet(member: Member, seq: int = 0, detail: str = "") -> Exchange:
    return member.begin(call_of(Kind.barrier, BYTE, seq, detail=detail), path=Path.meet)


def reducing(member: Member, seq: int = 0, path: Path = Path.inline) -> Exchange:
    """An all_reduce in two phases, of an array that peers read where it lies."""
    array = member.put(np.arange(100) + member.rank, "segment")
    return member.begin(call_of(Kind.all_reduce, array, seq, ReduceOp.SUM), array, array, path)


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
        running = [(member, reducing(member, seq)) for member in group]
        for member, exchange in running:
            assert exchange.operation is not None
            array = exchange.operation.source
            at = array.__array_interface__["data"][0] - member.hub.bytes.__array_interface__["data"][0]
            words = {word: member.word(seq, word) for word in (FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT)}
            place = at << 1 | 1  # any byte, and that all of it lies there
            assert words == {FILL: 1, TOOK: 0, OUT: 0, TOOK_OUT: 0, SOURCE: place, RESULT: place}
            assert member.word(seq) == exchange.code == exchange.plan.digest << 16 | seq + 1
            assert exchange.moves == 1
            peer = group[1 - member.rank]
            assert peer.board.complete()
            assert peer.board.signature_of(member.rank, seq) == exchange.operation.call.signature
        assert run(running) == []


@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
async def test_waits_for_a_word_of_every_peer(hubs: Any, join: Any, path: Path) -> None:
    group = join(hubs(3))
    running = [(member, reducing(member, 0, path)) for member in group]
    for _ in range(3):
        for member, exchange in running[:2]:
            assert not member.step(exchange)  # the third has not reduced its part
    late, exchange = running[2]
    assert late.word(0, OUT) == 0
    assert not late.step(exchange)  # nobody has collected from it
    assert late.word(0, OUT) == 1
    assert run(running) == []


@pytest.mark.parametrize("path", [Path.inline, Path.bulk])
async def test_words_ring_whoever_waits_for_them(hubs: Any, join: Any, path: Path) -> None:
    """Loops wait for what loops carry out, threads for what threads do; publishing rings both."""
    first, second = join(hubs(2))
    bell = second.hub.segment

    def sleeps(number: int) -> None:
        second.hub.words[ASLEEP_LOOP] = second.hub.words[ASLEEP_BULK] = number

    sleeps(1)
    mine = reducing(first, 0, path)
    assert bell.hear() == (True, path is Path.bulk)
    theirs = reducing(second, 0, path)
    sleeps(2)
    assert not first.step(mine)  # it has reduced its part, and says so
    assert bell.hear() == (path is Path.inline, path is Path.bulk)
    sleeps(0)
    assert run([(first, mine), (second, theirs)]) == []
    assert bell.hear() == (False, False)  # nobody rings a process that is awake


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
    assert not first.board.slots.closed  # the other one may look for more, until it leaves
    second.leave()
    first.hub.take(64)
    assert first.board.slots.closed


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

    @given(st.integers(0, 1 << 30), st.integers(0, 1 << 40))
    def check(count: int, seq: int) -> None:
        like = SimpleNamespace(dtype=BYTE.dtype, shape=(count,))
        owner: Any = member
        plan = plan_of(member.board, call_of(Kind.barrier, like), Path.meet, Thresholds(), owner)

        def code(seq: int) -> int:
            exchange = plan.begin(seq, [], [])
            word = exchange.code
            exchange.drop()
            return word

        word = code(seq)
        assert 0 < word < 1 << 64
        assert word >> 16 == plan.digest
        assert word & 0xFFFF == (seq + 1) % (1 << bits)
        for later in range(1, SLOTS + 1):  # what a slot held before is no later operation
            assert word != code(seq + later)

    check()
    member.close()
