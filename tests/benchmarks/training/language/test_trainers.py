"""Training by each algorithm: all ranks have the same values, and averages are those of one large batch."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from aiodist.group import ProcessGroup  # noqa: E402
from aiodist.testing.cluster import run_cluster  # noqa: E402
from benchmarks.training.language import text  # noqa: E402
from benchmarks.training.language.model import SHAPES, Learner  # noqa: E402
from benchmarks.training.language.trainers import trainer  # noqa: E402
from benchmarks.training.language.ways import WAYS  # noqa: E402
from tests.levels import COSTLY  # noqa: E402

TINY = SHAPES["tiny"]
CODES = text.corpus().train


def batch(rank: int, step: int) -> tuple[text.Tokens, text.Tokens]:
    return text.batch(CODES, rank, step, TINY.batch, TINY.length)


def trained(name: str, size: int, steps: int) -> list[list[list[Any]]]:
    """Of each rank: the values at each step after which they are settled."""

    async def part(pg: ProcessGroup) -> list[list[Any]]:
        learner = Learner(TINY, 1e-2)
        training = await trainer(pg, learner, WAYS[name])
        found = []
        for step in range(steps):
            await training.step(*batch(pg.rank, step))
            if training.settled:
                found.append(training.values())
        return found

    return asyncio.run(run_cluster(size, part))


@pytest.mark.parametrize("name", list(WAYS))
def test_all_ranks_have_the_same_values_where_they_are_settled(name: str) -> None:
    every = int(WAYS[name].rare.get("sync_every", 1))
    steps = 3 if every == 1 else every + 3
    ranks = trained(name, 2, steps)
    assert ranks[0]
    for values in zip(*ranks, strict=True):
        for arrays in zip(*values, strict=True):
            assert len({array.tobytes() for array in arrays}) == 1
    first, last = ranks[0][0], ranks[0][-1]
    changed = [not np.array_equal(one, other) for one, other in zip(first, last, strict=True)]
    assert any(changed) or len(ranks[0]) == 1


@pytest.mark.slow(COSTLY)
def test_averaged_gradients_are_those_of_one_large_batch() -> None:
    alone = Learner(TINY, 1e-2)
    for step in range(3):
        parts = [batch(rank, step) for rank in range(2)]
        inputs, targets = (np.concatenate([part[side] for part in parts]) for side in range(2))
        alone.train(inputs, targets)
    together = trained("ddp", 2, 3)[0][-1]
    for one, other in zip(together, alone.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.02, atol=2e-4)


def test_common_values_are_in_the_order_of_parameters() -> None:
    (values, *_), _ = trained("streaming", 2, 8)
    assert [array.shape for array in values] == [tuple(one.shape) for one in Learner(TINY, 1e-2).parameters]
    begins = Learner(TINY, 1e-2).values()
    moved = [not np.array_equal(one, other) for one, other in zip(values, begins, strict=True)]
    first = Learner(TINY, 1e-2).model.fragments(4)[0]
    assert [index for index, one in enumerate(moved) if one] == first, "only one fragment was exchanged"
