"""Slots: who may write what when, and what becomes of a group's memory."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.backends.host.local.board import CODE, SLOTS, Board, code
from aiodist.backends.host.local.hub import Hub

CONTEXT = 0xFEED_F00D_0123_4567


def boards(hubs: list[Hub]) -> list[Board]:
    ranks = range(len(hubs))
    return [Board(hub, CONTEXT, ranks, rank) for rank, hub in enumerate(hubs)]


async def test_a_region_is_found_once_its_owner_has_made_the_group(hubs: Any) -> None:
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    peer = mine.peers[0]
    assert not mine.found(peer)
    theirs = Board(second, CONTEXT, [0, 1], 1)
    assert mine.found(peer)
    assert peer.base == theirs.base
    word = theirs.base + theirs.head(5) + CODE
    assert peer.words[word] == 0
    theirs.words[word] = code(77, 5)
    assert peer.words[word] == code(77, 5)
    with pytest.raises(TypeError):
        peer.words[word] = 1  # only its owner writes it


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
            board.finished(seq)
        assert mine.free(seq + SLOTS)
        assert not mine.free(seq + 2 * SLOTS)
    assert not mine.free(1 + SLOTS)


async def test_spans_come_back_when_nobody_reads_them(hubs: Any) -> None:
    group = boards(hubs(2))
    mine = group[0]
    mine.found(mine.peers[0])
    first, second = mine.span(100_000, 0), mine.span(100_000, 1)
    assert first != second
    assert mine.span(100_000, 2) not in (first, second)
    for board in group:
        board.finished(0)
    assert mine.span(90_000, 3) == first  # of the same power of two
    mine.finished(1)
    assert mine.span(90_000, 4) not in (first, second)  # a peer may still read the second


async def test_a_signature_has_the_number_of_its_operation(hubs: Any) -> None:
    group = boards(hubs(2))
    mine, theirs = group
    peer = mine.peers[0]
    mine.found(peer)
    signature = bytes(range(16)) + (9).to_bytes(8, "little") + bytes(8)
    theirs.write_signature(9, signature)
    assert mine.signature_of(peer, 9) == signature
    assert mine.signature_of(peer, 9 + SLOTS)[16:24] == (9 + SLOTS).to_bytes(8, "little")


async def test_what_is_left_behind_is_kept_for_who_comes_late(hubs: Any) -> None:
    first, second = hubs(2)
    mine = Board(first, CONTEXT, [0, 1], 0)
    assert mine.abandoned(0)  # nothing was ever published
    assert not mine.abandoned(1)  # the other one has yet to make the group, and then reads
    theirs = Board(second, CONTEXT, [0, 1], 1)
    assert not mine.abandoned(1)
    theirs.finished(0)
    assert mine.abandoned(1)
    assert not mine.abandoned(2)
    second.leave(CONTEXT, lambda: True, theirs.release)
    assert mine.abandoned(2)  # who has left reads nothing
    second.take(64)  # the next piece clears away what is gone
    assert mine.peers[0].near.left(CONTEXT)  # and that it was here is still to be seen


async def test_memory_of_groups_that_are_gone_is_used_again(hubs: Any) -> None:
    (hub,) = hubs(1)
    board = Board(hub, 1, [0], 0)
    at = board.at
    hub.leave(1, lambda: board.abandoned(5), board.release)
    hub.take(64)
    assert Board(hub, 2, [0], 0).at == at
