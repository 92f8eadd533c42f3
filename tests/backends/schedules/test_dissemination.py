from __future__ import annotations

import pytest

from aiodist.backends.schedules import dissemination
from aiodist.backends.schedules.steps import Schedule
from aiodist.base.types import Kind
from tests.backends.schedules.prover import ScheduleError, prove


def test_nobody_leaves_before_everybody_came() -> None:
    for size in range(1, 65):
        schedules = [dissemination.barrier(rank, size) for rank in range(size)]
        proof = prove(Kind.barrier, schedules)
        assert proof.rounds == (size - 1).bit_length()
        assert sum(proof.sent) == 0


def test_one_round_fewer_would_not_do() -> None:
    full = [dissemination.barrier(rank, 5) for rank in range(5)]
    short = [Schedule(s.name, s.chunks, s.rounds[:-1], s.writes) for s in full]
    with pytest.raises(ScheduleError, match="leaves the barrier before"):
        prove(Kind.barrier, short)
