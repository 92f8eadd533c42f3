from __future__ import annotations

import math

import pytest

from aiodist.backends.schedules.costs import MESSAGE_NS, ROUND_NS, Cost
from aiodist.backends.schedules.select import ALGORITHMS
from aiodist.backends.schedules.steps import Schedule, Send, Step
from aiodist.base.types import Kind


def load(steps: tuple[Step, ...]) -> tuple[int, int]:
    """Chunks and messages that a rank sends in a round, or receives where that is more."""
    sends = [step.stop - step.start for step in steps if isinstance(step, Send)]
    receives = [step.stop - step.start for step in steps if not isinstance(step, Send)]
    return max(sum(sends), sum(receives)), max(len(sends), len(receives))


def copied(steps: tuple[Step, ...], chunks: int) -> int:
    return sum(
        step.stop - step.start
        for step in steps
        if step.stop > chunks or (isinstance(step, Send) and step.copy)
    )


def measured(schedules: list[Schedule]) -> Cost:
    chunks = schedules[0].chunks
    rounds = list(zip(*(one.rounds for one in schedules), strict=True))
    loads = [[load(steps) for steps in one] for one in rounds]
    return Cost(
        len(rounds),
        sum(max(sent for sent, _ in one) for one in loads) / chunks,
        sum(max(0, max(messages for _, messages in one) - 1) for one in loads),
        sum(max(copied(steps, chunks) for steps in one) for one in rounds) / chunks,
    )


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in ALGORITHMS for name in ALGORITHMS[kind]])
def test_the_model_counts_what_the_schedules_do(kind: Kind, name: str) -> None:
    one = ALGORITHMS[kind][name]
    for size in range(1, 33):
        if not one.offered(size, 0):
            continue
        cost = one.cost(size)
        for root in {0, size // 2, size - 1}:
            found = measured([one.build(rank, size, root) for rank in range(size)])
            assert (found.rounds, found.messages) == (cost.rounds, cost.messages)
            assert math.isclose(found.tensors, cost.tensors)
            assert found.copied <= cost.copied + 1e-9
            assert bool(found.copied) <= bool(cost.copied)


def test_time_is_the_sum_of_its_parts() -> None:
    assert Cost(3, 0.0, 2).ns(1 << 20) == 3 * ROUND_NS + 2 * MESSAGE_NS
    assert Cost(0, 2.0, copied=4.0).ns(1000) == pytest.approx(2 * 400 + 4 * 100)
