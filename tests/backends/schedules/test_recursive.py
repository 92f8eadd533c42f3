from __future__ import annotations

import pytest

from aiodist.backends.schedules import recursive
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove


def test_doubling_is_right_and_as_long_as_it_says() -> None:
    for size in range(1, 65):
        proof = prove(Kind.all_reduce, [recursive.doubling(rank, size) for rank in range(size)])
        levels = size.bit_length() - 1
        extra = 0 if size == 1 << levels else 2
        assert proof.rounds == levels + extra
        assert max(proof.sent) == levels + (1 if extra else 0)
        assert proof.depth <= levels + 1


def test_halving_is_right_and_as_long_as_it_says() -> None:
    for size in range(1, 65):
        proof = prove(Kind.all_reduce, [recursive.halving(rank, size) for rank in range(size)])
        count = recursive.participants(size)
        levels = count.bit_length() - 1
        extra = 0 if size == count else 2
        assert proof.rounds == 2 * levels + extra
        assert max(proof.sent) == 2 * (count - 1) + (count if extra else 0)
        assert proof.depth <= levels + 1


def test_participants() -> None:
    for size, count in [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (63, 32), (64, 64)]:
        assert recursive.participants(size) == count


def test_all_gather_and_reduce_scatter_are_right_and_as_long_as_they_say() -> None:
    for levels in range(7):
        size = 1 << levels
        gathered = prove(Kind.all_gather, [recursive.all_gather(rank, size) for rank in range(size)])
        scattered = prove(Kind.reduce_scatter, [recursive.reduce_scatter(rank, size) for rank in range(size)])
        assert gathered.rounds == scattered.rounds == levels
        assert gathered.sent == scattered.sent == (size - 1,) * size
        assert scattered.depth == levels


@pytest.mark.parametrize("size", [3, 5, 6, 7, 63])
def test_other_sizes_than_powers_of_two_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} ranks are not a power of two"):
        recursive.all_gather(0, size)
    with pytest.raises(ValueError, match=f"{size} ranks are not a power of two"):
        recursive.reduce_scatter(0, size)
