"""Paths follow from what all ranks agree on, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist._engine.exchange import Plan
from aiodist.backends.base import Operation
from aiodist.backends.buffers import buffers
from aiodist.backends.host.local import plan
from aiodist.backends.host.local.hub import engine, supported
from aiodist.backends.host.local.plan import (
    Path,
    blocks,
    fitting,
    is_known,
    most_staged,
    path_of,
    plan_of,
)
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.base.operations import ROLES
from aiodist.base.types import DTYPES, Call, Kind, ReduceOp

KIB, MIB = 1024, 1024 * 1024
FLOAT32 = np.dtype(np.float32)


def all_reduce(nbytes: int, dtype: np.dtype[np.generic] = FLOAT32, seq: int = 0) -> Call:
    return Call(Kind.all_reduce, seq, dtype, (nbytes // dtype.itemsize,), ReduceOp.SUM)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (Call(Kind.barrier, 0, FLOAT32), Path.meet),
        (Call(Kind.new_group, 0, FLOAT32, detail="ranks [0, 1]"), Path.meet),
        (all_reduce(8), Path.direct),
        (all_reduce(DEFAULTS.direct), Path.direct),
        (all_reduce(DEFAULTS.direct + 4), Path.inline),
        (all_reduce(DEFAULTS.inline), Path.inline),
        (all_reduce(DEFAULTS.inline + 4), Path.bulk),
        (Call(Kind.all_gather, 0, FLOAT32, (100,)), Path.slot),
        (Call(Kind.broadcast, 0, FLOAT32, (16 * MIB,), None, 0), Path.bulk),
    ],
)
def test_paths_by_size(call: Call, path: Path) -> None:
    assert path_of(call, 2, call.nbytes, DEFAULTS) is path


def plan_of_any(call: Call, path: Path, size: int = 2) -> Plan:
    """The plan of a call on rank 0 of a group that shares nothing."""
    memories = [engine().Memory(bytearray(8192), writable=True) for _ in range(size)]
    slots = engine().Slots(memories, 0, 0xFFFF, engine().EndOfTurn(engine().TurnClock(), 0.0, 0))
    board: Any = SimpleNamespace(size=size, rank=0, slots=slots)
    return plan_of(board, call, path, DEFAULTS, board)


@given(st.integers(0, 10_000), st.integers(1, 17), st.sampled_from([1, 2, 4, 8, 16]))
def test_parts_are_whole_cache_lines_and_cover_everything(count: int, size: int, itemsize: int) -> None:
    dtype = next(one for one in DTYPES if one.itemsize == itemsize)
    layout = plan_of_any(all_reduce(count * itemsize, dtype), Path.inline, size).layout
    starts, sizes = layout["starts"], layout["sizes"]
    assert starts[0] == 0
    assert [*starts[1:], count] == [start + part for start, part in zip(starts, sizes, strict=True)]
    assert all(low * itemsize % 64 == 0 for low in starts if low < count)
    assert max(sizes) == sizes[0]


def test_a_plan_is_made_once_and_as_a_whole() -> None:
    call = all_reduce(64)
    made, bare = plan_of_any(call, Path.inline), Plan.__new__(Plan)
    again: Any = Plan.__init__
    slots = engine().Slots(
        [engine().Memory(bytearray(8192), writable=True)],
        0,
        0xFFFF,
        engine().EndOfTurn(engine().TurnClock(), 0.0, 0),
    )
    given: Any = (slots, None, call, None, call.signature, engine().KINDS["share"])
    for wrong, error in (
        ((*given, [True], [False, True], 1), ValueError),
        ((*given, [True], [True], 1, [1, 2]), ValueError),
        ((*given, [True], [True], 1, [-1]), OverflowError),
        ((*given, [True], [True], 1 << 63), OverflowError),
        ((*given[:4], b"short", given[5], [True], [True], 1), ValueError),
    ):
        with pytest.raises(error):
            again(bare, *wrong)
        assert bare.layout["sizes"] == []
        with pytest.raises(ValueError, match="gone"):
            bare.begin(0, [], [])
    with pytest.raises(ValueError, match="made"):
        again(made, *given, [True], [True], 1)
    with pytest.raises(ValueError, match="signature"):
        made.begin(0, [], [], None, b"short")


def test_a_slow_dtype_leaves_the_loop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's way is slow with float16. Ranks that share memory have the same engine, and go the same way."""
    call = all_reduce(512 * KIB, np.dtype(np.float16))
    monkeypatch.setattr(_engine, "compiled", None)
    assert path_of(call, 2, call.nbytes, DEFAULTS) is Path.bulk
    monkeypatch.setattr(_engine, "compiled", object())
    assert path_of(call, 2, call.nbytes, DEFAULTS) is Path.inline
    assert path_of(all_reduce(512 * KIB), 2, 512 * KIB, DEFAULTS) is Path.inline


def test_digests_tell_calls_apart_but_not_their_numbers() -> None:
    calls = [
        all_reduce(64),
        all_reduce(68),
        all_reduce(64, np.dtype(np.int32)),
        Call(Kind.all_reduce, 0, FLOAT32, (4, 4), ReduceOp.SUM),
        Call(Kind.all_reduce, 0, FLOAT32, (16,), ReduceOp.MAX),
        Call(Kind.reduce, 0, FLOAT32, (16,), ReduceOp.SUM, 0),
        Call(Kind.reduce, 0, FLOAT32, (16,), ReduceOp.SUM, 1),
        Call(Kind.barrier, 0, FLOAT32, (0,), detail="a"),
        Call(Kind.barrier, 0, FLOAT32, (0,), detail="b"),
    ]
    digests = [plan_of_any(call, Path.meet).digest for call in calls]
    assert len(set(digests)) == len(calls)
    assert all(0 < digest < 1 << 48 for digest in digests)
    assert plan_of_any(all_reduce(64, seq=7), Path.meet).digest == digests[0]


@given(st.integers(2, 64), st.booleans())
def test_blocks_are_whole_pages_and_staging_is_bounded(size: int, alike: bool) -> None:
    lanes = 1 if alike else size - 1
    block, depth = blocks(size, lanes, DEFAULTS)
    assert block % 4096 == 0 < block
    assert block * lanes <= max(DEFAULTS.staging, 64 * KIB * lanes)
    assert depth >= 2
    mapped, _ = blocks(size, 0, DEFAULTS)
    assert block <= mapped <= DEFAULTS.block * (2 if size == 2 else 8)


@pytest.mark.skipif(not supported(), reason="without the engine no memory is shared")
@pytest.mark.parametrize("size", [2, 3, 8, 32])
@pytest.mark.parametrize("limits", [DEFAULTS, Thresholds(direct=64, inline=512, block=4096, staging=4096)])
def test_no_operation_stages_more_than_is_said(size: int, limits: Thresholds) -> None:
    memories = [engine().Memory(bytearray(8192), writable=True) for _ in range(size)]
    slots = engine().Slots(memories, 0, 0xFFFF, engine().EndOfTurn(engine().TurnClock(), 0.0, 0))
    board: Any = SimpleNamespace(size=size, rank=0, slots=slots)
    said, found = most_staged(size, limits), 0
    for nbytes in (1, 64, 512, limits.direct, limits.inline, limits.inline + 1, 16 * MIB):
        for kind in (kind for kind, roles in ROLES.items() if roles.gives(0, 0) and not roles.message):
            of_each = kind in (Kind.all_gather, Kind.gather, Kind.scatter)
            count = max(1, nbytes // size if of_each else nbytes)
            whole = kind in (Kind.scatter, Kind.all_to_all, Kind.reduce_scatter)
            source = np.empty(count * size if kind is Kind.scatter else count, np.uint8)
            if whole:
                source = np.empty(-(-source.size // size) * size, np.uint8)
            target = np.empty(count * size if kind in (Kind.all_gather, Kind.gather) else count, np.uint8)
            if kind in (Kind.all_to_all, Kind.reduce_scatter):
                target = np.empty(source.size // (1 if kind is Kind.all_to_all else size), np.uint8)
            reduce = ReduceOp.SUM if "reduce" in kind.name else None
            shape = (source.size,) if whole and kind is not Kind.scatter else (count,)
            call = Call(kind, 0, source.dtype, shape, reduce, 0)
            path = path_of(call, size, count * size if of_each else call.nbytes, limits)
            work: Any = None
            operation = Operation(call, work, source, target, None, print)
            made = buffers(operation, 0, size, joined=False)
            meets = path is Path.meet
            plan = plan_of(board, call, path, limits, board)
            begun = plan.begin(0, [] if meets else made.send, [] if meets else made.recv, made)
            found = max(found, begun.needs)
            assert begun.needs <= said
    assert found > said // 8  # and not much less


@pytest.mark.parametrize(
    ("nbytes", "inline"), [(64 << 30, 4 << 20), (64 << 20, 2 << 20), (32 << 20, 1 << 20), (1 << 20, 1 << 20)]
)
def test_what_is_staged_whole_fits_the_smallest_segment(nbytes: int, inline: int) -> None:
    assert fitting(DEFAULTS, nbytes) == replace(DEFAULTS, inline=inline)
    assert fitting(Thresholds(inline=512), nbytes).inline == 512


def test_what_reduces_the_values_of_some_ranks_is_left_to_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(
        is_known(kind, size) for kind, roles in ROLES.items() if not roles.message for size in (1, 2, 5)
    )
    monkeypatch.setattr(plan, "origins", lambda kind, rank, size, root: [range(rank + 1)])  # a prefix sum
    is_known.cache_clear()
    assert not is_known(Kind.all_reduce, 2) and is_known(Kind.all_reduce, 1) and is_known(Kind.broadcast, 2)
    is_known.cache_clear()
