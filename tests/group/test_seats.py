"""Nodes and local ranks: whoever shares a host, in a launcher's order where it has one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.group.seats import UNSAID, RankSeat, Said, Seat, place_in, seats_of


def places(said: list[Said]) -> list[tuple[int, ...]]:
    seats = seats_of(said)
    return [tuple(place_in(seats, rank)) for rank in range(len(said))]


def test_ranks_that_share_a_host_are_of_one_node() -> None:
    said = [Said("a"), Said("b"), Said("a"), Said("c"), Said("b"), Said("a")]
    assert places(said) == [
        (0, 3, 0, 3), (0, 2, 1, 3), (1, 3, 0, 3), (0, 1, 2, 3), (1, 2, 1, 3), (2, 3, 0, 3),
    ]  # fmt: skip


def test_a_launchers_order_counts_where_all_say_one() -> None:
    said = [Said("b", 1, 1), Said("b", 1, 0), Said("a", 0, 0), Said("a", 0, 1)]
    assert places(said) == [(1, 2, 1, 2), (0, 2, 1, 2), (0, 2, 0, 2), (1, 2, 0, 2)]


def test_two_agents_of_one_host_are_two_nodes() -> None:
    assert places([Said("a", 0, 0), Said("a", 1, 0)]) == [(0, 1, 0, 2), (0, 1, 1, 2)]


@pytest.mark.parametrize(
    "said",
    [
        [Said("a", 0), Said("b", 0)],  # one node, and two hosts
        [Said("a", 0), Said("b", UNSAID)],
    ],
)
def test_a_node_is_not_believed_against_the_hosts(said: list[Said]) -> None:
    assert places(said) == [(0, 1, 0, 2), (0, 1, 1, 2)]


@pytest.mark.parametrize("other", [0, UNSAID])
def test_local_ranks_are_not_believed_where_two_have_one_or_one_says_none(other: int) -> None:
    assert places([Said("a", UNSAID, 0), Said("a", UNSAID, other)]) == [(0, 2, 0, 1), (1, 2, 0, 1)]


def test_what_is_left_of_a_job_has_no_holes() -> None:
    said = [Said("b", 5, 3), Said("a", 2, 7), Said("b", 5, 1)]
    assert places(said) == [(1, 2, 1, 2), (0, 1, 0, 2), (0, 2, 1, 2)]


def test_a_groups_members_are_counted_among_themselves() -> None:
    seats = seats_of([Said("a"), Said("b"), Said("a"), Said("b")])
    assert place_in([seats[1], seats[3]], 1) == RankSeat(1, 2, 0, 1)
    assert place_in([seats[3], seats[0]], 0) == RankSeat(0, 1, 1, 2)


NUMBERS = st.integers(UNSAID, 4)


@given(st.lists(st.builds(Said, st.sampled_from("abc"), NUMBERS, NUMBERS), min_size=1, max_size=12))
def test_places_are_numbers_without_holes_and_hosts_are_never_mixed(said: list[Said]) -> None:
    found = places(said)
    counts = {place[3] for place in found}
    assert len(counts) == 1
    nodes: dict[int, list[int]] = {}
    for rank, (_, _, node, _) in enumerate(found):
        nodes.setdefault(node, []).append(rank)
    assert sorted(nodes) == [*range(counts.pop())]
    for ranks in nodes.values():
        assert len({said[rank].host for rank in ranks}) == 1
        assert sorted(found[rank][0] for rank in ranks) == [*range(len(ranks))]
        assert {found[rank][1] for rank in ranks} == {len(ranks)}


def test_a_seat_is_a_pair() -> None:
    assert seats_of([Said("a")]) == (Seat(0, 0),)
