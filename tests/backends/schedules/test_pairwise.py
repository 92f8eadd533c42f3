from __future__ import annotations

import pytest

from aiodist.backends.schedules import pairwise
from aiodist.backends.schedules.steps import Send
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import few


@pytest.mark.parametrize("size", few(range(1, 65), [*range(1, 10), 13, 16], "proofs for every size"))
def test_both_are_right_and_as_long_as_they_say(size: int) -> None:
    in_turn = prove(Kind.all_to_all, [pairwise.all_to_all(rank, size) for rank in range(size)])
    at_once = prove(Kind.all_to_all, [pairwise.spread(rank, size) for rank in range(size)])
    assert in_turn.rounds == size - 1
    assert at_once.rounds == min(1, size - 1)
    assert in_turn.sent == at_once.sent == (size - 1,) * size


def test_partners_swap_where_the_size_is_a_power_of_two() -> None:
    for size in (2, 4, 8, 64):
        for steps in pairwise.all_to_all(1, size).rounds:
            assert len({step.peer for step in steps}) == 1


def test_a_round_has_one_peer_in_each_direction() -> None:
    for size in range(2, 20):
        for index in range(size - 1):
            rounds = [pairwise.all_to_all(rank, size).rounds[index] for rank in range(size)]
            targets = [step.peer for steps in rounds for step in steps if isinstance(step, Send)]
            assert sorted(targets) == list(range(size))
