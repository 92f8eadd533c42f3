"""Entries of an optimiser's state: all pieces of an array have the same, or it is said which one differs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.ddp.sharded.entries import alike, described


def piece(index: int, size: int, /, **state: Any) -> tuple[int, list[Any]]:
    return index, described(state, (size,), False)


def test_pieces_of_other_lengths_and_orders_are_alike() -> None:
    """Also where one has come from another rank: NumPy's scalars are numbers, or arrays then."""
    first = piece(0, 3, velocity=np.ones(3), count=2, last=math.nan, top=np.float64(0.1), low=np.float32(0.1))
    second = piece(0, 5, low=np.array(0.1, np.float32), top=0.1, last=math.nan, count=2, velocity=np.ones(5))
    other = piece(1, 4)
    assert alike([first, second, other]) == {0: first[1], 1: []}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("velocity", {"count": 2}),
        ("more", {"velocity": np.ones(3), "count": 2, "more": None}),
        ("velocity", {"velocity": np.ones(3, np.float32), "count": 2}),
        ("velocity", {"velocity": 1.0, "count": 2}),
        ("count", {"velocity": np.ones(3), "count": 3}),
        ("count", {"velocity": np.ones(3), "count": 2.0}),
    ],
)
def test_others_are_refused_by_name(name: str, state: dict[str, Any]) -> None:
    one, other = piece(7, 3, velocity=np.ones(3), count=2), piece(7, 3, **state)
    for pieces in ([one, other], [other, one]):
        with pytest.raises(
            UsageError, match=f"state '{name}' is not the same for all pieces of trained array 7"
        ):
            alike([piece(1, 3), *pieces])
