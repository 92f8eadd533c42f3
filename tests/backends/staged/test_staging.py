"""What stands in for an operation's tensors on the host, and what is copied between the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.staged.copier import room
from aiodist.backends.staged.staging import Staging
from aiodist.types import NO_ROOT, Call, Kind

F32 = np.dtype(np.float32)


def staged(kind: Kind, source: Any, target: Any, root: int = NO_ROOT) -> tuple[Staging, list[Any], list[Any]]:
    """On rank 1: the staging, and whose copies go out and in."""
    nobody: Any = None
    call = Call(kind, 0, F32, (3,), None, root)
    staging = Staging(Operation(call, nobody, source, target, None, nobody), 1)
    outward = staging.make(np.empty)
    for there, here in (*outward, *staging.inward):
        assert (here.shape, here.dtype) == (there.shape, there.dtype)
        assert here.flags.c_contiguous and not np.shares_memory(here, there)
    return staging, [there for there, _ in outward], [there for there, _ in staging.inward]


def array(*shape: int) -> Any:
    return np.zeros((*shape[:-1], shape[-1] * 2), F32)[..., ::2]


def test_one_tensor_for_both_has_one_place_on_the_host() -> None:
    tensor = array(2, 3)
    staging, outward, inward = staged(Kind.all_reduce, tensor, tensor)
    assert staging.source is staging.target
    assert outward[0] is inward[0] is tensor
    assert len(outward) == len(inward) == 1


@pytest.mark.parametrize(("root", "goes_out"), [(1, True), (0, False)])
def test_broadcast_copies_one_way(root: int, goes_out: bool) -> None:
    tensor = array(3)
    staging, outward, inward = staged(Kind.broadcast, tensor, tensor, root)
    assert staging.source is staging.target is not None
    assert (len(outward), len(inward)) == (int(goes_out), int(not goes_out))


def test_only_what_is_there_is_copied() -> None:
    source, target = array(3), array(2, 3)
    staging, outward, inward = staged(Kind.gather, source, None, 0)
    assert staging.target is None and outward[0] is source and inward == []
    staging, outward, inward = staged(Kind.scatter, None, source, 0)
    assert staging.source is None and outward == [] and inward[0] is source
    staging, outward, inward = staged(Kind.all_gather, source, target)
    assert outward[0] is source and inward[0] is target
    staging, outward, inward = staged(Kind.barrier, None, None)
    assert outward == inward == []


def test_lists_are_staged_one_by_one_without_what_is_empty() -> None:
    parts = [array(3), array(0), array(2, 2)]
    staging, outward, inward = staged(Kind.all_to_all, parts, parts[::-1])
    assert isinstance(staging.source, list) and isinstance(staging.target, list)
    assert [one.shape for one in staging.source] == [(3,), (0,), (2, 2)]
    assert [one.shape for one in staging.target] == [(2, 2), (0,), (3,)]
    assert [id(one) for one in outward] == [id(parts[0]), id(parts[2])]
    assert [id(one) for one in inward] == [id(parts[2]), id(parts[0])]


def test_pinned_memory_has_few_sizes_and_little_of_it_is_wasted() -> None:
    for nbytes in (1, 511, 512, 513, 4096, 100_001, 2**20, 2**20 + 1, 10**9):
        assert nbytes <= room(nbytes) <= max(512, nbytes * 1.25) + 511
        assert room(room(nbytes)) == room(nbytes)
    assert len({room(nbytes) for nbytes in range(2**15, 2**16)}) <= 9
