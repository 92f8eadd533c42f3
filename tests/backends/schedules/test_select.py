from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules.costs import DOUBLING_LIMIT, RING_CHUNK, SPREAD_LIMIT, WRAP_LIMIT
from aiodist.backends.schedules.select import ALGORITHMS, UNKNOWN, algorithm, select
from aiodist.backends.schedules.steps import Recv, Schedule, Send, Step, chunk_bounds, spans
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Parts, origins
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import COSTLY

COLLECTIVES = tuple(kind for kind in ALGORITHMS if kind is not Kind.new_group)
CHUNK_PER_RANK = [kind for kind in COLLECTIVES if ROLES[kind].cut and kind is not Kind.all_to_all]
SIZES = (UNKNOWN, 0, 8, 8192, 65536, 65537, 1 << 18, 1 << 20, 1 << 24, 1 << 28)

Array = npt.NDArray[np.int64]


@pytest.mark.slow(COSTLY)
@given(
    kind=st.sampled_from(COLLECTIVES),
    size=st.integers(1, 64),
    nbytes=st.integers(UNKNOWN, 1 << 28) | st.sampled_from(SIZES),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_selected_is_right(kind: Kind, size: int, nbytes: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    prove(kind, [select(kind, rank, size, root, nbytes) for rank in range(size)], root)


def taken(step: Step, buffer: Array, bounds: list[int]) -> Array:
    """What a step covers, in the order of the wire."""
    parts = spans(step.start, step.stop, len(bounds) - 1)
    return np.concatenate([buffer[bounds[low] : bounds[high]] for low, high in parts])


def put(step: Step, buffer: Array, bounds: list[int], values: Array) -> None:
    at = 0
    for low, high in spans(step.start, step.stop, len(bounds) - 1):
        count = bounds[high] - bounds[low]
        buffer[bounds[low] : bounds[high]] = values[at : at + count]
        at += count
    assert at == len(values)


def run(
    schedules: list[Schedule],
    inputs: list[Array],
    outputs: list[Array],
    bounds_in: list[list[int]],
    bounds_out: list[list[int]],
) -> None:
    """All ranks in lockstep, on real arrays. Values at the begin of a round are what is sent."""
    for index in range(len(schedules[0].rounds)):
        wire = {
            (rank, step.peer): taken(step, inputs[rank], bounds_in[rank])
            for rank, schedule in enumerate(schedules)
            for step in schedule.rounds[index]
            if isinstance(step, Send)
        }
        for rank, schedule in enumerate(schedules):
            for step in schedule.rounds[index]:
                if isinstance(step, Send):
                    continue
                theirs = wire.pop((step.peer, rank))
                if not isinstance(step, Recv):
                    theirs = theirs + taken(step, outputs[rank], bounds_out[rank])
                put(step, outputs[rank], bounds_out[rank], theirs)
        assert not wire


@given(
    kind=st.sampled_from([kind for kind in COLLECTIVES if kind is not Kind.all_to_all]),
    size=st.integers(1, 9),
    count=st.integers(0, 40),
    nbytes=st.sampled_from(SIZES),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_on_arrays_it_equals_numpy(
    kind: Kind, size: int, count: int, nbytes: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    schedules = [select(kind, rank, size, root, nbytes) for rank in range(size)]
    bounds = chunk_bounds(count, schedules[0].chunks)
    if kind in CHUNK_PER_RANK:  # of any sizes, as long as all agree
        counts = data.draw(st.lists(st.integers(0, 7), min_size=size, max_size=size))
        bounds = [0, *itertools.accumulate(counts)]
    inputs = [np.arange(bounds[-1], dtype=np.int64) * 7 + 1000 * rank**2 for rank in range(size)]
    buffers = [array.copy() for array in inputs]
    mine = [slice(bounds[r], bounds[r + 1]) for r in range(size)] if kind in CHUNK_PER_RANK else []
    for rank, buffer in enumerate(buffers):
        if kind in (Kind.all_gather, Kind.gather):
            buffer[: mine[rank].start] = buffer[mine[rank].stop :] = -1
        elif kind is Kind.scatter and rank != root:
            buffer[:] = -1
    run(schedules, buffers, buffers, [bounds] * size, [bounds] * size)
    roles = ROLES[kind]
    for rank, buffer in enumerate(buffers):
        for place, members in enumerate(origins(kind, rank, size, root)):
            where = slice(None) if not roles.cut else mine[rank if roles.target is Parts.ONE else place]
            total = np.sum([inputs[member] for member in members], axis=0)
            np.testing.assert_array_equal(buffer[where], total[where])


@given(size=st.integers(1, 9), nbytes=st.sampled_from(SIZES), data=st.data())
@settings(max_examples=100, deadline=None)
def test_uneven_all_to_all_equals_numpy(size: int, nbytes: int, data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    counts = np.array(data.draw(st.lists(row, min_size=size, max_size=size)))  # [from, to]
    blocks = {
        (i, j): np.arange(counts[i, j], dtype=np.int64) + 100 * i + 10_000 * j
        for i in range(size)
        for j in range(size)
    }
    inputs = [np.concatenate([blocks[rank, j] for j in range(size)]) for rank in range(size)]
    expected = [np.concatenate([blocks[i, rank] for i in range(size)]) for rank in range(size)]
    outputs = [np.full(len(array), -1, np.int64) for array in expected]
    bounds_in = [[0, *itertools.accumulate(counts[rank, :].tolist())] for rank in range(size)]
    bounds_out = [[0, *itertools.accumulate(counts[:, rank].tolist())] for rank in range(size)]
    for rank, output in enumerate(outputs):
        output[bounds_out[rank][rank] : bounds_out[rank][rank + 1]] = blocks[rank, rank]
    schedules = [select(Kind.all_to_all, rank, size, nbytes=nbytes) for rank in range(size)]
    run(schedules, inputs, outputs, bounds_in, bounds_out)
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, right)


def test_the_choice_by_size() -> None:
    assert algorithm(Kind.all_reduce, 8, 8) == "recursive_doubling"
    assert algorithm(Kind.all_reduce, 8, 1 << 20) == "recursive_halving"
    assert algorithm(Kind.all_reduce, 7, 1 << 24) == "ring"
    for size in range(2, 65):
        assert algorithm(Kind.all_reduce, size, DOUBLING_LIMIT + 1) != "recursive_doubling"
        for kind in (Kind.all_gather, Kind.reduce_scatter):
            assert algorithm(kind, size, size * RING_CHUNK) == "ring"
        assert algorithm(Kind.all_to_all, size, SPREAD_LIMIT + 1) == "pairwise"
        assert algorithm(Kind.all_to_all, size, UNKNOWN) == "pairwise"
        for kind in (Kind.broadcast, Kind.reduce):
            assert algorithm(kind, size, 8) == "binomial"
            assert (algorithm(kind, size, 1 << 28) == "binomial") == (size == 2)
        for kind in (Kind.gather, Kind.scatter):
            assert algorithm(kind, size, 1 << 28) == "linear"


@given(
    kind=st.sampled_from(COLLECTIVES), size=st.integers(1, 24), nbytes=st.integers(WRAP_LIMIT + 1, 1 << 28)
)
@settings(max_examples=60, deadline=None)
def test_large_messages_are_not_copied(kind: Kind, size: int, nbytes: int) -> None:
    schedules = [select(kind, rank, size, size // 2, nbytes) for rank in range(size)]
    for one in schedules:
        for step in itertools.chain.from_iterable(one.rounds):
            assert step.stop <= one.chunks
            assert not isinstance(step, Send) or not step.copy


def test_unknown_means_many() -> None:
    for kind in COLLECTIVES:
        for size in (1, 2, 3, 8, 63):
            assert algorithm(kind, size, UNKNOWN) == algorithm(kind, size, 1 << 40)


def test_a_group_of_one_has_nothing_to_do() -> None:
    for kind in COLLECTIVES:
        for nbytes in SIZES:
            assert not any(select(kind, 0, 1, 0, nbytes).rounds)


def test_schedules_are_cached() -> None:
    assert select(Kind.all_reduce, 1, 4, nbytes=8) is select(Kind.all_reduce, 1, 4, nbytes=9)
    assert select(Kind.all_gather, 1, 4, 0, nbytes=8) is select(Kind.all_gather, 1, 4, nbytes=9)
    assert select(Kind.new_group, 1, 4).name == select(Kind.barrier, 1, 4).name


@pytest.mark.parametrize("kind", [Kind.send, Kind.recv])
def test_point_to_point_has_no_schedule(kind: Kind) -> None:
    with pytest.raises(UsageError, match=f"{kind.name} has no schedule"):
        select(kind, 0, 2)
