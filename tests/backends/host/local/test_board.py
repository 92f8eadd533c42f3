"""Slots: who may write what when, and what becomes of a group's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist._engine.exchange import Plan
from aiodist.backends.host.local import board as numbers
from aiodist.backends.host.local import hub as words
from aiodist.backends.host.local.board import CODE, NUMBER_BITS, REGION, SLOTS, Board
from aiodist.backends.host.local.hub import Hub, engine
from aiodist.base.types import Call, Kind

CALL = Call(Kind.broadcast, 0, np.dtype(np.uint8), (0,))
CONTEXT = 0xFEED_F00D_0123_4567


def test_the_engine_has_the_same_numbers() -> None:
    mine = (numbers.SLOTS, numbers.PAYLOAD, numbers.HEADER, numbers.STRIDE, numbers.REGION, *range(7))
    assert (*mine, words.ASLEEP_LOOP, words.ASLEEP_BULK) == engine().LAYOUT


def boards(hubs: list[Hub]) -> list[Board]:
    ranks = range(len(hubs))
    return [Board(hub, CONTEXT, ranks, rank) for rank, hub in enumerate(hubs)]


def plan(board: Board, which: int, kind: str = "share") -> Plan:
    """The plan of operations in which nobody gets anything of another."""
    signature = bytes([which, *range(1, 32)])
    return engine().Plan(
        *(board.slots, Owner(board), CALL, None, signature, engine().KINDS[kind]),
        *([False] * board.size, [kind == "share"] * board.size, 0),
    )


def code(board: Board, which: int, seq: int) -> int:
    """The word that publishes an operation."""
    return plan(board, which).digest << 16 | (seq + 1) & (1 << NUMBER_BITS) - 1


def publish(board: Board, which: int, seq: int) -> None:
    """Publish an operation."""
    plan(board, which).begin(seq, [], []).publish()


def end_unseen(board: Board, which: int, seq: int) -> None:
    """Publish one that ends without a look at others."""
    exchange = plan(board, which).begin(seq, [], [])
    exchange.publish()
    exchange.note_over()


class Owner:
    """In the place of the group."""

    def __init__(self, board: Board) -> None:
        self.board, self.hub = board, board.hub

    def reuse(self, seq: int) -> None:
        self.board.slots.forget_unseen(seq)

    def look_back(self, numbers: list[int]) -> None:
        self.board.look_back(numbers)


async def test_a_region_is_found_once_its_owner_has_made_the_group(hubs: Any) -> None:
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    peer = mine.peers[0]
    assert not mine.found(peer) and not mine.complete()
    theirs = Board(second, CONTEXT, [0, 1], 1)
    assert mine.found(peer) and mine.complete()
    assert mine.slots.word(1, 5, CODE) == 0
    publish(theirs, 77, 5)
    assert mine.slots.word(1, 5, CODE) == theirs.slots.word(1, 5, CODE) == code(theirs, 77, 5)
    with pytest.raises(TypeError):
        peer.memory.words[theirs.at // 8] = 1  # only its owner writes it


async def test_a_region_that_begins_within_a_word_is_none(hubs: Any) -> None:
    """In the thread an error about it would end the thread."""
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    Board(second, CONTEXT, [0, 1], 1)
    second._offsets[second._entries[CONTEXT]] += 4
    assert not mine.complete()
    second._offsets[second._entries[CONTEXT]] -= 4
    assert mine.complete()


async def test_an_exchange_that_is_added_again_is_counted_once(hubs: Any) -> None:
    (board, _) = boards(hubs(2))
    exchange = plan(board, 77, "meet").begin(3, [], [])
    for _ in range(2):
        board.slots.add(exchange)
    assert board.slots.count == 1
    board.slots.discard(exchange)
    assert board.slots.count == 0


async def test_a_slot_is_free_when_all_have_finished_what_it_held(hubs: Any) -> None:
    group = boards(hubs(3))
    for board in group:
        assert all(board.found(peer) for peer in board.peers)
    mine = group[0]
    assert all(mine.free(seq) for seq in range(SLOTS))
    for seq in (0, 3):
        for board in group:
            assert not mine.free(seq + SLOTS)
            assert not mine.all_finished(seq)
            board.slots.finished(seq)
        assert mine.free(seq + SLOTS)
        assert not mine.free(seq + 2 * SLOTS)
    assert not mine.free(1 + SLOTS)


async def test_a_number_is_passed_over_once_its_slot_is_free_and_seen(hubs: Any) -> None:
    mine, theirs = boards(hubs(2))
    assert mine.slots.pass_over(5) and mine.slots.word(0, 5, CODE) == 0
    assert not mine.slots.pass_over(5 + SLOTS)  # not before the other has finished what it holds
    assert theirs.slots.pass_over(5) and mine.complete()
    assert mine.slots.pass_over(5 + SLOTS)
    for seq, theirs_is in ((6, 77), (7, 78)):
        end_unseen(mine, 77, seq)
        publish(theirs, theirs_is, seq)
        theirs.slots.finished(seq)
        assert mine.slots.pass_over(seq + SLOTS) == (theirs_is == 77)
        assert (mine.slots.word(0, seq, CODE) == 0) == (theirs_is == 77)
    assert mine.slots.unseen == [7] and mine.look_back([7]) == (7, 1)
    mine.slots.forget_unseen(7)
    assert mine.slots.pass_over(7 + SLOTS)
    mine.close()
    assert mine.slots.pass_over(8)  # nothing is touched any more


async def test_what_ended_unseen_is_compared_when_peers_have_published(hubs: Any) -> None:
    local = hubs(3)
    mine = Board(local[0], CONTEXT, range(3), 0)
    end_unseen(mine, 77, 5)
    assert mine.look_back([5]) is None  # nobody has made the group yet
    first, second = (Board(local[rank], CONTEXT, range(3), rank) for rank in (1, 2))
    publish(first, 77, 5)
    assert mine.look_back([5]) is None  # one has yet to publish
    assert mine.slots.unseen == [5]
    publish(second, 78, 5)
    assert mine.look_back([5]) == (5, 2)
    publish(second, 77, 5)
    assert mine.look_back([5]) is None
    assert mine.slots.unseen == []


async def test_who_has_written_there_again_has_looked_itself(hubs: Any) -> None:
    mine, theirs = boards(hubs(2))
    end_unseen(mine, 77, 5)
    theirs.slots.finished(5)
    publish(theirs, 78, 5 + SLOTS)
    assert mine.look_back([5]) is None
    assert mine.slots.unseen == []


async def test_spans_come_back_when_nobody_reads_them(hubs: Any) -> None:
    group = boards(hubs(2))
    mine = group[0]
    mine.found(mine.peers[0])
    first, second = mine.span(100_000, 0), mine.span(100_000, 1)
    assert first != second
    assert mine.span(100_000, 2) not in (first, second)
    for board in group:
        board.slots.finished(0)
    assert mine.span(90_000, 3) == first  # of the same power of two
    mine.slots.finished(1)
    assert mine.span(90_000, 4) not in (first, second)  # a peer may still read the second


async def test_idle_spans_of_one_group_serve_another(hubs: Any) -> None:
    local = hubs(2, nbytes=16 << 20)
    group = boards(local)
    other = [Board(hub, CONTEXT + 1, [0, 1], rank) for rank, hub in enumerate(local)]
    for board in (*group, *other):
        board.found(board.peers[0])
    mine, more = group[0], other[0]
    spans = [mine.span(4 << 20, seq) for seq in range(3)]
    assert all(spans)
    assert more.span(4 << 20, 0) == 0  # a peer may still read those
    for board in group:
        board.slots.finished(1)
    assert more.span(4 << 20, 0) == spans[1]
    assert mine.span(4 << 20, 3) == 0
    for board in group:
        board.slots.finished(0)
    assert mine.span(4 << 20, 3) == spans[0]


async def test_a_signature_has_the_number_of_its_operation(hubs: Any) -> None:
    group = boards(hubs(2))
    mine, theirs = group
    assert mine.complete()
    publish(theirs, 0, 9)
    assert mine.signature_of(1, 9) == bytes(range(16)) + (9).to_bytes(8, "little") + bytes(range(24, 32))
    assert mine.signature_of(1, 9 + SLOTS)[16:24] == (9 + SLOTS).to_bytes(8, "little")


async def test_what_is_left_behind_is_kept_for_who_comes_late(hubs: Any) -> None:
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    assert not mine.abandoned()  # the other one has yet to make the group, and then reads
    theirs = Board(second, CONTEXT, [0, 1], 1)
    theirs.slots.finished(0)
    assert not mine.abandoned()  # it may look for what comes next
    second.leave(CONTEXT, lambda: True, theirs.release)
    assert mine.abandoned()  # who has left reads nothing
    second.take(64)  # the next piece clears away what is gone
    peer = mine.peers[0]
    assert peer.memory.has_left(CONTEXT, peer.entry)  # and that it was here is still to be seen


async def test_a_region_serves_no_other_group_while_a_member_stays(hubs: Any) -> None:
    """Rank 0 leaves, and makes another group. What rank 1 looks at says nothing of that one's operations."""
    first, second, third = hubs(3)
    mine, theirs = Board(first, CONTEXT, [0, 1], 0), Board(second, CONTEXT, [0, 1], 1)
    assert theirs.found(theirs.peers[0])
    for board in (mine, theirs):
        board.slots.finished(0)
    at = mine.at
    first.leave(CONTEXT, mine.abandoned, mine.release)
    other = Board(first, CONTEXT + 1, [0, 2], 0)
    publish(other, 77, 1)
    assert theirs.slots.word(0, 1, CODE) == 0
    second.leave(CONTEXT, theirs.abandoned, theirs.release)
    assert Board(first, CONTEXT + 2, [0, 2], 0).at == at
    assert Board(third, CONTEXT + 1, [0, 2], 1).found(Board(third, CONTEXT + 2, [0, 2], 1).peers[0])


@pytest.mark.parametrize("seen", [True, False])
async def test_an_entry_that_serves_another_group_says_that_its_first_was_left(hubs: Any, seen: bool) -> None:
    first, second = hubs(2)
    mine, theirs = Board(first, CONTEXT, [0, 1], 0), Board(second, CONTEXT, [0, 1], 1)
    assert not seen or mine.found(mine.peers[0])
    second.leave(CONTEXT, lambda: True, theirs.release)
    second.take(64)
    second._contexts[second._reusable.popleft()] = CONTEXT + 1  # as after some thousand groups
    assert mine.abandoned() is seen  # or it may be yet to make the group


async def test_nobody_waits_for_who_never_makes_the_group(hubs: Any) -> None:
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    second.will_not_join(CONTEXT)
    assert not mine.found(mine.peers[0])
    assert mine.abandoned()
    at = mine.at
    first.leave(CONTEXT, mine.abandoned, mine.release)
    assert Board(first, CONTEXT + 1, [0], 0).at == at


async def test_the_next_group_in_an_entry_is_not_taken_for_one_that_was_never_made(hubs: Any) -> None:
    first, second = hubs(2)
    mine, peer = Board(first, CONTEXT, [0, 1], 0), None
    second.will_not_join(CONTEXT)
    peer = mine.peers[0]
    assert not mine.found(peer)  # and its entry is known now
    second._contexts[second._contexts == 0] = 1  # all others are in use
    other = Board(second, CONTEXT + 1, [0, 1], 1)
    assert second._entries[CONTEXT + 1] == peer.entry
    assert other.at
    assert not mine.found(peer)
    assert mine.abandoned()


async def test_a_group_that_was_made_cannot_be_renounced_any_more(hubs: Any) -> None:
    first, second = hubs(2)
    mine, theirs = Board(first, CONTEXT, [0, 1], 0), Board(second, CONTEXT, [0, 1], 1)
    second.will_not_join(CONTEXT)
    assert mine.found(mine.peers[0])
    publish(theirs, 77, 0)
    assert mine.slots.word(1, 0, CODE) == code(theirs, 77, 0)
    assert not mine.abandoned()


async def test_memory_of_groups_that_are_gone_is_used_again(hubs: Any) -> None:
    (hub,) = hubs(1)
    board = Board(hub, 1, [0], 0)
    at = board.at
    hub.leave(1, board.abandoned, board.release)
    assert Board(hub, 2, [0], 0).at == at


async def test_who_has_begun_an_operation_is_seen_in_its_slot_whatever_its_loop_does(hubs: Any) -> None:
    mine, second, third = boards(hubs(3))
    assert mine.begun(5) == set()
    publish(second, 77, 5)
    assert mine.begun(5) == {1}
    assert third.begun(5) == {1}
    second.slots.finished(5)
    third.slots.finished(5)  # skipped, say
    assert mine.begun(5) == {1, 2}
    assert mine.begun(5 + SLOTS) == set()
    publish(second, 78, 5 + SLOTS)
    assert mine.begun(5) == {1, 2}
    assert mine.begun(5 + SLOTS) == {1}


async def test_region_beyond_a_home_is_not_there(hubs: Any) -> None:
    local = hubs(2)
    mine, other = boards(local)
    for at in (len(local[1].view) - REGION + 64, 1 << 62):
        local[1]._offsets[local[1]._entries[CONTEXT]] = at
        assert not mine.found(mine.peers[0])
    local[1]._offsets[local[1]._entries[CONTEXT]] = other.at
    assert mine.found(mine.peers[0])
