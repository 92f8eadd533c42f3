"""Who sits where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.launch.nodes.roster import Member, Roster


def test_places_by_wish_then_by_arrival() -> None:
    roster = Roster.of(
        [Member(0, "a", 2), Member(1, "b", 3, wanted=0), Member(3, "d", 1), Member(2, "c", 4, wanted=9)]
    )
    assert [(m.host, m.first_rank) for m in roster.members] == [("b", 0), ("a", 3), ("c", 5), ("d", 9)]
    assert (roster.world_size, roster.initial) == (10, 4)
    assert (roster.node_rank(3), roster.node_rank(7)) == (3, None)


def test_who_comes_later_changes_nobodys_ranks() -> None:
    before = Roster.of([Member(0, "a", 2), Member(1, "b", 3)], attempt=2, restarts=1)
    after = before.grown(Member(5, "f", 4))
    assert after.members[:2] == before.members
    assert after.members[2].first_rank == 5
    assert (after.world_size, after.initial, after.attempt, after.restarts) == (9, 2, 2, 1)


members = st.builds(
    Member, st.integers(0, 50), st.text("aé-.", max_size=3), st.integers(1, 4), st.none() | st.integers(0, 6)
)


@given(st.lists(members, min_size=1, max_size=6, unique_by=lambda m: m.id))
def test_every_member_has_one_seat_and_every_rank_one_owner(listed: list[Member]) -> None:
    roster = Roster.of(listed, store_port=7)
    assert {m.id for m in roster.members} == {m.id for m in listed}
    ranks = [m.first_rank + local for m in roster.members for local in range(m.nproc)]
    assert ranks == list(range(roster.world_size))
    assert Roster.from_json(roster.to_json()) == roster


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"members": [1]}', b'{"members": [{"x": 1}]}', b"\xff"]
)
def test_a_broken_roster_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Roster.from_json(data)
