"""Large frames leave in pieces, in turns, and are put together again, whatever is dropped meanwhile."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.group.services.outbox import AT_ONCE, Outbox, Pieces
from aiodist.net.wire.calls import PIECE, Frames, Says
from tests.levels import COSTLY


@pytest.mark.slow(COSTLY)
@given(st.integers(0, 1 << 32))
def test_what_is_put_in_comes_out(seed: int) -> None:
    rng = random.Random(seed)
    outbox, pieces, frames = Outbox(), Pieces(), Frames()
    sent: dict[int, tuple[int, bytes]] = {}
    came: list[int] = []
    number = 0
    while number < 20 or outbox.lanes:
        if number < 20 and (not outbox.lanes or rng.random() < 0.4):
            number += 1
            body = rng.randbytes(rng.choice([1, PIECE, PIECE + 1, 3 * PIECE]))
            lane = rng.choice([0, number])
            sent[number] = lane, body
            outbox.add(lane, Says.MESSAGE, number, (body[:7], body[7:]))
        elif rng.random() < 0.1:
            victim = rng.choice(list(sent))
            outbox.drop(sent[victim][0], victim)
            pieces.drop(victim)
        else:
            for kind, of, part in frames.feed(b"".join(outbox.cut())):
                if kind == Says.PIECE:
                    pieces.add(of, part)
                    assert len(pieces.bodies) <= AT_ONCE
                else:
                    assert pieces.whole(of, part) == sent[of][1]
                    came.append(of)
        assert len(set(outbox.numbers()) & set(came)) == 0
    assert outbox.nbytes == 0
    assert len(pieces.bodies) == 0
    in_lane = [one for one in came if sent[one][0] == 0]
    assert in_lane == sorted(in_lane)


def test_a_peer_that_begins_too_many() -> None:
    pieces = Pieces()
    for number in range(AT_ONCE):
        pieces.add(number, b"a")
    with pytest.raises(WireError, match="more than 4 frames"):
        pieces.add(AT_ONCE, b"a")
    pieces.drop(0)
    pieces.add(AT_ONCE, b"a")


def test_a_peer_that_sends_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodist.group.services.outbox.MOST", 10)
    pieces = Pieces()
    pieces.add(1, b"12345678")
    with pytest.raises(WireError, match="more than 10 bytes"):
        pieces.add(1, b"901")
    with pytest.raises(WireError, match="more than 10 bytes"):
        pieces.whole(1, b"901")
