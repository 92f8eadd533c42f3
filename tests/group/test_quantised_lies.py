"""Encoded sums that are none, from a member: an error on all ranks, which accuses that member alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import GroupBroken, NonFiniteValues
from aiodist.group import ProcessGroup, quantized
from aiodist.group.pieces import NOTE
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster

SIZE = 3
LIAR = 1


def note(bad: int, giver: int) -> Callable[[Any], None]:
    """Say that of a sum, whatever it is."""

    def lie(summed: Any) -> None:
        summed[:NOTE].view(np.int32)[:] = bad, giver

    return lie


def all_ones(summed: Any) -> None:
    """Fill note and sum."""
    summed[:] = 255


def ones_behind_the_note(summed: Any) -> None:
    """Fill the sum, and say that it is finite."""
    summed[NOTE:] = 255


def infinite_scale(summed: Any) -> None:
    """Give a block an infinite scale."""
    summed[NOTE:].view(np.float32)[0] = np.inf


def codes_that_overflow(summed: Any) -> None:
    """Use the one code that `encode` never makes, with the largest scale that it does."""
    summed[NOTE:].view(np.float32)[0] = np.finfo(np.float32).max / (127 if summed.size > 300 else 7)
    summed[NOTE + 40 :] = 128


LIES: dict[str, Callable[[Any], None]] = {
    "of a rank that there is not": note(1, 2**31 - 1),
    "of a rank below 0": note(1, -5),
    "fewer than none": note(-1, 0),
    "a rank without a block": note(0, 2),
    "blocks that are finite": note(7, 1),
    **{lie.__name__: lie for lie in (all_ones, ones_behind_the_note, infinite_scale, codes_that_overflow)},
}


@pytest.mark.parametrize("keep", [False, True], ids=["raise", "keep"])
@pytest.mark.parametrize("codec", ["int8", "int4/64"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_sum_that_is_none_is_no_result(
    lie: Callable[[Any], None], codec: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = quantized.QuantizedRun._sum

    def lying(run: Any, index: int) -> None:
        honest(run, index)
        if run._rank == LIAR:
            lie(run._room[index].summed)

    monkeypatch.setattr(quantized.QuantizedRun, "_sum", lying)

    async def part(pg: ProcessGroup) -> None:
        tensor = np.arange(1000, dtype=np.float32) + pg.rank
        how = "keep" if keep else "raise"
        with pytest.raises(GroupBroken, match=f"rank {LIAR} of the group has sent .* sum that is none"):
            await pg.all_reduce_quantized(tensor, codec=codec, non_finite=how)

    run_virtual(run_cluster(SIZE, part))


def test_a_share_of_ones_is_that_of_the_rank_that_sent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = quantized.QuantizedRun._encode

    def lying(run: Any, index: int) -> None:
        honest(run, index)
        if run._rank == LIAR:
            run._room[index].given.view(np.float32)[:] = np.inf

    monkeypatch.setattr(quantized.QuantizedRun, "_encode", lying)

    async def part(pg: ProcessGroup) -> None:
        tensor = np.arange(960, dtype=np.float32)
        with pytest.raises(NonFiniteValues) as caught:
            await pg.all_reduce_quantized(tensor)
        assert caught.value.rank == LIAR
        assert await pg.all_reduce(pg.rank) == 3

    run_virtual(run_cluster(SIZE, part))
