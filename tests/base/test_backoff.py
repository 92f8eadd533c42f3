"""Back-off: each pause is twice as long as the one before, up to the longest, less a share left to chance."""

from __future__ import annotations

import asyncio
import random

import pytest

from aiodist.base.backoff import Backoff, pause_after
from aiodist.testing import run_virtual


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next() for _ in range(count)]


def test_pauses_double_up_to_the_longest() -> None:
    assert pauses(Backoff(0.01, 0.05), 5) == [0.01, 0.02, 0.04, 0.05, 0.05]
    assert pauses(Backoff(0.1), 3) == [0.1, 0.1, 0.1]
    assert pauses(Backoff(0.01, 0.05, failed=2), 2) == [0.04, 0.05]


@pytest.mark.parametrize(
    ("jitter", "number", "expected"),
    [(0.5, 0.0, [1.0, 2.0, 3.0]), (0.5, 1.0, [0.5, 1.0, 1.5]), (1.0, 0.75, [0.25, 0.5, 0.75])],
)
def test_a_share_of_a_pause_is_left_to_chance(jitter: float, number: float, expected: list[float]) -> None:
    assert pauses(Backoff(1.0, 3.0, jitter=jitter, chance=lambda: number), 3) == expected


def test_two_processes_with_the_same_seed_do_not_come_back_together() -> None:
    random.seed(1)
    state = random.getstate()
    one, other = (Backoff(1.0, jitter=1.0) for _ in range(2))
    assert pauses(one, 8) != pauses(other, 8)
    assert random.getstate() == state  # the program's own numbers stay as they were


def test_any_number_of_failures_has_a_pause() -> None:
    assert pause_after(1, 0.5, 30.0) == 0.5
    assert pause_after(10**6, 0.5, 30.0) == 30.0


def test_what_pauses_so_takes_the_time_of_its_pauses() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        backoff = Backoff(0.25, 1.0)
        began = loop.time()
        for _ in range(4):
            await asyncio.sleep(backoff.next())
        return loop.time() - began

    assert run_virtual(main()) == 0.25 + 0.5 + 1.0 + 1.0
