"""Moves of all ranks, carried out together, give what the collective means."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.device import geometry
from aiodist.backends.base import Operation
from aiodist.backends.buffers import cut
from aiodist.backends.foreign.moves import Move, moves_of, worth
from aiodist.backends.foreign.task import prepare
from aiodist.base.operations import ROLES, Parts, Uneven, origins
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp

COUNTS = st.integers(0, 4)


def carry(moves: Sequence[Sequence[Move]]) -> None:
    """Do what an engine does: between two ranks, the n-th send goes to the n-th receive."""
    sent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
    for rank, mine in enumerate(moves):
        for sends, peer, array in mine:
            assert array.size, "empty messages are none"
            assert array.ndim == 1 and array.flags.c_contiguous
            if sends:
                sent[rank, peer].append(array.copy())
    for rank, mine in enumerate(moves):
        for sends, peer, array in mine:
            if not sends:
                array[:] = sent[peer, rank].popleft()  # of another size: raises
    assert not any(sent.values()), "a send without its receive"


def values(rank: int, count: int) -> Any:
    """Distinct ones for each rank and element."""
    return np.arange(count) + 100 * (rank + 1)


def table_of(size: int, uneven: Uneven, counts: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[int]]]:
    """Elements from each member to each: `[source][target]`."""
    row = st.lists(counts, min_size=size, max_size=size)
    if uneven is Uneven.PAIRS:
        return st.lists(row, min_size=size, max_size=size)
    return row.map(lambda sizes: [sizes] * size)


COLLECTIVES = [kind for kind, roles in ROLES.items() if roles.gives(0, 0) and not roles.message]


@pytest.mark.parametrize("kind", COLLECTIVES, ids=lambda kind: kind.name)
@given(st.data())
def test_every_collective_is_one_exchange(kind: Kind, data: st.DataObject) -> None:
    """Of parts of any sizes, where they may differ: also those for which no method passes sizes yet."""
    roles = ROLES[kind]
    size = data.draw(st.integers(1, 5))
    root = data.draw(st.integers(0, size - 1)) if roles.rooted else NO_ROOT
    # From each source to each target; where a part is for everybody, as many to each.
    if not roles.cut:
        count = data.draw(COUNTS)
        table = [[count] * size for _ in range(size)]
    elif data.draw(st.booleans()):
        table = data.draw(table_of(size, roles.uneven, COUNTS))
        if roles.source is Parts.ONE:
            table = [list(column) for column in zip(*table, strict=True)]
    else:
        count = data.draw(COUNTS)
        table = [[count] * size for _ in range(size)]

    def given_by(rank: int) -> list[Any]:
        whole = values(rank, sum(table[rank]))
        return (
            [whole[:count] for count in table[rank][:1]]
            if roles.source is Parts.ONE
            else cut(whole, table[rank], size)
        )

    tasks = []
    for rank in range(size):
        source = target = None
        coming = [table[other][rank] for other in range(size)]
        if roles.gives(rank, root):
            source = np.concatenate(given_by(rank))
        if roles.gets(rank, root):
            target = np.full(sum(coming) if roles.target is Parts.EACH else coming[max(root, 0)], -1)
        if roles.one_tensor:
            source = target = source if target is None else target
        call = Call(kind, 0, np.dtype(np.int64), (), ReduceOp.SUM if roles.reduces else None, root)
        sizes: dict[str, Any] = {}
        if roles.source is Parts.EACH:
            sizes["source_sizes"] = table[rank]
        if roles.target is Parts.EACH:
            sizes["target_sizes"] = coming
        tasks.append(prepare(Operation(call, None, source, target, None, print, **sizes), rank, size))  # type: ignore[arg-type]
    carry([moves_of(task, rank, size) for rank, task in enumerate(tasks)])
    for rank, task in enumerate(tasks):
        task.empty()
        if not roles.gets(rank, root):
            continue
        senders = [other for part in origins(kind, rank, size, root) for other in part]
        theirs = [given_by(other)[0 if roles.source is Parts.ONE else rank] for other in senders]
        expected = sum(theirs) if roles.reduces else np.concatenate(theirs)
        assert task.target is not None
        assert np.array_equal(task.target, expected)


def test_carrying_out_sees_what_does_not_match() -> None:
    array = np.arange(2)
    with pytest.raises(AssertionError, match="without its receive"):
        carry([[Move(True, 1, array)], []])
    with pytest.raises(IndexError):
        carry([[], [Move(False, 0, array)]])
    with pytest.raises(ValueError):
        carry([[Move(True, 1, array)], [Move(False, 0, array[:1])]])
    with pytest.raises(AssertionError, match="empty"):
        carry([[Move(True, 0, array[:0])]])


def test_moves_of_device_memory_are_geometry_alone() -> None:
    source = geometry(1 << 40, (6,), None, np.dtype(np.float32), 2, "tensor")
    target = geometry(1 << 41, (5,), None, np.dtype(np.float32), 2, "other")
    call = Call(Kind.all_to_all, 0, np.dtype(np.float32))
    work: Any = None
    of = Operation(call, work, source, target, None, print, source_sizes=[2, 4], target_sizes=[5, 0])
    moves = moves_of(prepare(of, 0, 2), 0, 2)
    seen: list[Any] = [(sends, peer, array) for sends, peer, array in moves]
    places = [(sends, peer, array.pointer, array.size) for sends, peer, array in seen]
    assert places == [(True, 0, 1 << 40, 2), (True, 1, (1 << 40) + 8, 4), (False, 0, 1 << 41, 5)]
    assert worth([Move(True, 0, source[:0])]) == []
