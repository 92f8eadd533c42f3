"""The floor of each operation: its moves, with all ranks in step, give what the operation must give."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.cases import COLLECTIVES, Array, Case, check, fill
from benchmarks.ranks.moves import KNOWN, Place, phases, staging

KIB, MIB = 1 << 10, 1 << 20


class Memory:
    """The arrays of all ranks."""

    def __init__(self, case: Case, size: int) -> None:
        self.arrays: dict[tuple[str, int], Array] = {}
        for rank in range(size):
            length, out = case.lengths(size, rank)
            tensor = np.zeros(length, np.float32)
            fill(tensor, rank)
            self.arrays["tensor", rank] = tensor
            self.arrays["out", rank] = np.zeros(out, np.float32)
            self.arrays["staging", rank] = np.full(staging(case, size), np.nan, np.float32)

    def at(self, place: Place) -> Array:
        found = self.arrays[place.array, place.rank]
        assert 0 <= place.begin <= place.end <= len(found)
        return found[place.begin : place.end]


CASES = [
    *(
        (Case(what, nbytes, shared=shared), size)
        for what in COLLECTIVES
        for nbytes in (8, 64 * KIB, 4 * MIB)
        for shared in (False, True)
        for size in (2, 3)
    ),
    *((Case("five", KIB), size) for size in (2, 3)),
    *((Case("p2p", nbytes), 2) for nbytes in (8, 4 * MIB)),
]


def test_every_operation_is_among_them() -> None:
    assert {case.what for case, _ in CASES} == set(KNOWN)


@pytest.mark.parametrize(("case", "size"), CASES)
def test_in_step_they_do_the_operation(case: Case, size: int) -> None:
    memory = Memory(case, size)
    everybody = [list(phases(case, size, rank)) for rank in range(size)]
    for step in zip(*everybody, strict=True):
        for phase in step:
            for into, one, other in phase:
                value = memory.at(one) if other is None else memory.at(one) + memory.at(other)
                memory.at(into)[:] = value
    for rank in range(size):
        check(case, rank, size, memory.arrays["tensor", rank], memory.arrays["out", rank])


@pytest.mark.parametrize("what", ["all_reduce", "broadcast", "all_gather", "scatter"])
def test_private_arrays_are_read_by_nobody_else(what: str) -> None:
    for rank in range(3):
        for phase in phases(Case(what, MIB), 3, rank):
            for move in phase:
                places = [place for place in move if place is not None]
                assert all(place.rank == rank for place in places if place.array != "staging")


def test_small_ones_go_in_once_and_out_once_per_peer() -> None:
    moves = [move for phase in phases(Case("all_reduce", 8), 3, 1) for move in phase]
    assert [move.into.array for move in moves] == ["staging", "tensor", "tensor"]
    assert [move.other and move.other.rank for move in moves] == [None, 0, 2]


def test_what_is_staged_stays_in_the_cache() -> None:
    for what in ("all_reduce", "broadcast", "all_to_all", "reduce_scatter"):
        assert 4 * staging(Case(what, 256 * MIB), 2) <= 4 * MIB
