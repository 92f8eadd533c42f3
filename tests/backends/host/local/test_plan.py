"""Paths follow from what all ranks agree on, and from nothing else."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.host.local.board import LOW, code
from aiodist.backends.host.local.group import EXCHANGES
from aiodist.backends.host.local.plan import Path, blocks, digest_of, path_of
from aiodist.environment.thresholds import DEFAULTS
from aiodist.types import Call, Kind, ReduceOp

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
        (Call(Kind.all_gather, 0, FLOAT32, (100,)), Path.inline),
        (Call(Kind.broadcast, 0, FLOAT32, (16 * MIB,), None, 0), Path.bulk),
    ],
)
def test_paths_by_size(call: Call, path: Path) -> None:
    assert path_of(call, 2, call.nbytes, DEFAULTS) is path


def test_every_collective_with_data_has_an_exchange() -> None:
    assert EXCHANGES.keys() == set(Kind) - {Kind.barrier, Kind.new_group, Kind.send, Kind.recv}


def test_a_slow_dtype_leaves_the_loop_early_whatever_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 is fast where torch is loaded; another rank may not have it, and must go the same way."""
    call = all_reduce(512 * KIB, np.dtype(np.float16))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    without = path_of(call, 2, call.nbytes, DEFAULTS)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert path_of(call, 2, call.nbytes, DEFAULTS) is without is Path.bulk
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
    digests = [digest_of(call) for call in calls]
    assert len(set(digests)) == len(calls)
    assert all(0 < digest < 1 << 48 for digest in digests)
    assert digest_of(all_reduce(64, seq=7)) == digests[0]


@given(st.integers(1, (1 << 48) - 1), st.integers(0, 1 << 40))
def test_the_word_that_publishes_is_never_zero_and_holds_both(digest: int, seq: int) -> None:
    word = code(digest, seq)
    assert 0 < word < 1 << 64
    assert word >> 16 == digest
    assert word & LOW == (seq + 1) % 65536
    assert word & LOW != code(digest, seq + 64) & LOW  # what a slot held before is no later operation


@given(st.integers(1, 1 << 32), st.integers(2, 64), st.booleans())
def test_blocks_are_whole_pages_and_staging_is_bounded(part: int, size: int, alike: bool) -> None:
    lanes = 1 if alike else size - 1
    block, depth = blocks(part, size, lanes, DEFAULTS)
    assert block % 4096 == 0
    assert 4096 <= block <= max(4096, -(-part // 4096) * 4096)
    assert block * lanes <= max(DEFAULTS.staging, 64 * KIB * lanes)
    assert depth >= 2
    mapped, _ = blocks(part, size, 0, DEFAULTS)
    assert block <= mapped <= DEFAULTS.block * 2
