from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.errors import UsageError
from aiodist.schedules.prover import prove
from aiodist.schedules.select import (
    ALL_REDUCE,
    DOUBLING_LIMIT,
    all_reduce_algorithm,
    all_reduce_cost,
    select,
)
from aiodist.schedules.steps import Recv, Schedule, Send, chunk_bounds
from aiodist.types import Kind

COLLECTIVES = (
    Kind.all_reduce,
    Kind.broadcast,
    Kind.reduce,
    Kind.all_gather,
    Kind.reduce_scatter,
    Kind.barrier,
)
SIZES = (0, 8, 8192, 65536, 65537, 1 << 20, 1 << 24, 1 << 28)


@given(
    kind=st.sampled_from(COLLECTIVES), size=st.integers(1, 64), nbytes=st.integers(0, 1 << 28), data=st.data()
)
@settings(max_examples=60)
def test_whatever_is_selected_is_right(kind: Kind, size: int, nbytes: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    prove(kind, [select(kind, rank, size, root, nbytes) for rank in range(size)], root)


def run(schedules: list[Schedule], buffers: list[npt.NDArray[np.int64]]) -> None:
    """All ranks in lockstep, on real arrays. Values at the begin of a round are what is sent."""
    bounds = chunk_bounds(len(buffers[0]), schedules[0].chunks)
    for index in range(len(schedules[0].rounds)):
        wire = {
            (rank, step.peer): buffers[rank][bounds[step.start] : bounds[step.stop]].copy()
            for rank, schedule in enumerate(schedules)
            for step in schedule.rounds[index]
            if isinstance(step, Send)
        }
        for rank, schedule in enumerate(schedules):
            for step in schedule.rounds[index]:
                if isinstance(step, Send):
                    continue
                mine = buffers[rank][bounds[step.start] : bounds[step.stop]]
                theirs = wire.pop((step.peer, rank))
                mine[...] = theirs if isinstance(step, Recv) else theirs + mine
        assert not wire


@given(
    kind=st.sampled_from(COLLECTIVES),
    size=st.integers(1, 9),
    count=st.integers(0, 40),
    nbytes=st.sampled_from(SIZES),
    data=st.data(),
)
@settings(max_examples=150)
def test_on_arrays_it_equals_numpy(
    kind: Kind, size: int, count: int, nbytes: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    schedules = [select(kind, rank, size, root, nbytes) for rank in range(size)]
    if kind in (Kind.all_gather, Kind.reduce_scatter):
        count *= size
    buffers = [np.arange(count, dtype=np.int64) * 7 + 1000 * rank**2 for rank in range(size)]
    inputs = [buffer.copy() for buffer in buffers]
    each = count // size
    if kind is Kind.all_gather:
        for rank, buffer in enumerate(buffers):
            buffer[: rank * each] = buffer[(rank + 1) * each :] = -1
    run(schedules, buffers)
    total = np.sum(inputs, axis=0)
    for rank, buffer in enumerate(buffers):
        mine = slice(rank * each, (rank + 1) * each)
        if kind is Kind.all_reduce or (kind is Kind.reduce and rank == root):
            np.testing.assert_array_equal(buffer, total)
        elif kind is Kind.broadcast:
            np.testing.assert_array_equal(buffer, inputs[root])
        elif kind is Kind.reduce_scatter:
            np.testing.assert_array_equal(buffer[mine], total[mine])
        elif kind is Kind.all_gather:
            for source in range(size):
                part = slice(source * each, (source + 1) * each)
                np.testing.assert_array_equal(buffer[part], inputs[source][part])


def test_the_cost_model_counts_what_the_schedules_do() -> None:
    for size in range(1, 33):
        for name, build in ALL_REDUCE.items():
            rounds, tensors = all_reduce_cost(name, size)
            schedules = [build(rank, size) for rank in range(size)]
            assert rounds == len(schedules[0].rounds)
            longest = [  # of each round, the largest message that anybody sends
                max(
                    (
                        step.stop - step.start
                        for s in schedules
                        for step in s.rounds[index]
                        if isinstance(step, Send)
                    ),
                    default=0,
                )
                for index in range(rounds)
            ]
            assert math.isclose(sum(longest) / schedules[0].chunks, tensors)


def test_the_choice_by_size() -> None:
    assert all_reduce_algorithm(8, 8) == "recursive_doubling"
    assert all_reduce_algorithm(8, 1 << 20) == "recursive_halving"
    assert all_reduce_algorithm(7, 1 << 24) == "ring"
    for size in range(1, 65):
        assert all_reduce_algorithm(size, DOUBLING_LIMIT + 1) != "recursive_doubling" or size == 1


def test_a_group_of_one_has_nothing_to_do() -> None:
    for kind in COLLECTIVES:
        assert not any(select(kind, 0, 1, 0, 1 << 20).rounds)


def test_schedules_are_cached() -> None:
    assert select(Kind.all_reduce, 1, 4, nbytes=8) is select(Kind.all_reduce, 1, 4, nbytes=9)


@pytest.mark.parametrize("kind", [Kind.send, Kind.recv])
def test_point_to_point_has_no_schedule(kind: Kind) -> None:
    with pytest.raises(UsageError, match=f"{kind.name} has no schedule"):
        select(kind, 0, 2)
