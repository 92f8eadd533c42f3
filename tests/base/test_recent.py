"""What is added last is remembered, and no more than that."""

from __future__ import annotations

from aiodist.base.recent import Recent


def test_the_oldest_are_forgotten() -> None:
    recent = Recent(3)
    for number in (1, 2, 3, 1, 4):  # 1 is the newest again
        recent.add(number)
    assert [number in recent for number in (1, 2, 3, 4)] == [True, False, True, True]
    for number in range(10):
        recent.add(number)
    assert len(recent) == 3
