"""When a rank knows that all have come: found again by leaving out one rank after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aiodist.backends.schedules.hearing import heard_in, last_received
from aiodist.backends.schedules.select import ALGORITHMS, FEW, heard, select
from aiodist.backends.schedules.steps import Schedule, Send
from aiodist.base.operations import ROLES
from aiodist.base.types import Kind

CASES = [(kind, name) for kind, by_name in ALGORITHMS.items() for name in by_name]


def ended(schedules: Sequence[Schedule], absent: int) -> list[int]:
    """How many rounds each rank ends if one never comes."""
    rounds = [0] * len(schedules)
    moved = True
    while moved:
        moved = False
        for rank, schedule in enumerate(schedules):
            if rank == absent or rounds[rank] == len(schedule.rounds):
                continue
            peers = [step.peer for step in schedule.rounds[rounds[rank]] if not isinstance(step, Send)]
            if all(peer != absent and rounds[peer] >= rounds[rank] for peer in peers):
                rounds[rank] += 1
                moved = True
    return rounds


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda case: getattr(case, "name", case))
def test_from_then_on_a_rank_waits_for_nobody_who_has_not_come(kind: Kind, name: str) -> None:
    for size in (1, 2, 3, 4, 5, 8, 11):
        if not ALGORITHMS[kind][name].offered(size, 64):
            continue
        for root in range(size) if ROLES[kind].rooted else (0,):
            schedules = [ALGORITHMS[kind][name].build(rank, size, root) for rank in range(size)]
            stuck = [ended(schedules, absent) for absent in range(size)]
            for rank in range(size):
                whole = len(schedules[rank].rounds)
                needed = [by[rank] for absent, by in enumerate(stuck) if absent != rank and by[rank] < whole]
                assert heard_in(schedules, rank) == max(needed, default=-1), (size, root, rank)


def test_in_large_groups_it_is_the_last_round_that_receives() -> None:
    size = FEW + 1
    for rank in (0, 1, size - 1):
        schedule = select(Kind.all_reduce, rank, size, nbytes=1 << 24)
        found = heard(Kind.all_reduce, rank, size, nbytes=1 << 24)
        assert found == last_received(schedule) == len(schedule.rounds) - 1


def test_a_ring_has_heard_of_all_half_way() -> None:
    assert heard(Kind.all_reduce, 2, 5, nbytes=1 << 26) == 3  # of eight rounds
