"""Rounds that are worked out carry the same messages as the schedules that ranks run by."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from aiodist.backends.schedules.select import ALGORITHMS
from aiodist.base.types import Kind
from aiodist.sim.constants import Constants
from aiodist.sim.cost import Fabric, parts
from aiodist.sim.network import Floats, network
from aiodist.sim.rounds import SimPlan, plan

LONG = {"ring", "ring_gather", "scatter_ring", "chain", "pairwise", "spread"}
CASES = [(kind, name) for kind, names in ALGORITHMS.items() for name in names if name in LONG]
SIZES = [2, 3, 5, 8, 13]


def both(kind: Kind, name: str, size: int, root: int = 0) -> tuple[SimPlan, SimPlan]:
    """Played, and worked out."""
    played, worked = plan(kind, name, size, root, size), plan(kind, name, size, root, 1)
    assert played is not worked
    return played, worked


def sent(made: SimPlan, size: int) -> Counter[tuple[int, int]]:
    """Chunks between each pair, over all rounds."""
    found: Counter[tuple[int, int]] = Counter()
    for one in made.rounds():
        for src, dst, start, stop in zip(one.src, one.dst, one.start, one.stop, strict=True):
            found[int(src), int(dst)] += one.times * int(stop - start)
    return found


def ends(made: SimPlan, size: int, nbytes: int, at: Floats) -> Floats:
    """When all members of one host each are through."""
    fabric = Fabric(network("link=1Gbit/s:30us", size), Constants())
    chunks = np.array([nbytes / size]) if made.two_buffers else parts(nbytes, made.chunks)
    return fabric.run(made, chunks, np.arange(size), at, fabric.begin(0.0))


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_messages(kind: Kind, name: str, size: int) -> None:
    for root in {0, size - 1}:
        played, worked = both(kind, name, size, root)
        assert played.chunks == worked.chunks
        assert played.two_buffers == worked.two_buffers
        assert sent(played, size) == sent(worked, size)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_the_same_time(kind: Kind, name: str, size: int, chunk: int) -> None:
    played, worked = both(kind, name, size)
    nbytes = chunk * played.chunks
    starts: list[Floats] = [np.zeros(size), np.linspace(0.0, 1e-3 * (size - 1), size)]
    for at in starts:
        one, other = (ends(made, size, nbytes, at) for made in (played, worked))
        assert other.max() == pytest.approx(one.max(), rel=1e-6)
        # Played, the messages that go at once are one round, in which a link is through with all at once.
        assert other == pytest.approx(one, rel=0.1 if name == "spread" and at.any() else 1e-6)


def test_a_plan_is_of_both_kinds() -> None:
    assert len(CASES) >= 8
    assert {name for _, name in CASES} == LONG
