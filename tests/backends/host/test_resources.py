"""Which ranks share memory follows from what all have proved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.host.resources import hosts_of


@given(st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=6))
def test_a_host_is_a_set_of_ranks_that_have_all_proved_it_to_each_other(local_to: list[set[int]]) -> None:
    size = len(local_to)
    sharing = [
        {b for b in range(size) if a == b or (b in local_to[a] and a in local_to[b])} for a in range(size)
    ]
    assert hosts_of(local_to) == [
        group if all(sharing[other] == group for other in group) else {rank}
        for rank, group in enumerate(sharing)
    ]


def test_ranks_of_a_host_have_one_set() -> None:
    first, *others = hosts_of([{1, 2}, {0, 2}, {0, 1}])
    assert first == {0, 1, 2}
    assert all(other is first for other in others)
