"""A thousand ranks in one process: the full group code over memory channels, in virtual time.

A thousand take a minute and a half and 5 GB, since all_to_all opens a million channels:

    AIODIST_SLOW=1 pytest -m slow tests/test_simulation.py
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.net.wire.frame import parse
from aiodist.testing import VirtualLoop, run_cluster
from aiodist.transport.memory import MemoryNetwork
from aiodist.transport.memory_link import MemoryLink
from tests.helpers import core_of
from tests.levels import MORE

TICK = 2.0**-12  # seconds; delays are whole ticks, so that many frames arrive together


SLOW = pytest.mark.slow("a thousand ranks")
LONG = pytest.mark.skipif(not os.environ.get("AIODIST_SLOW"), reason="AIODIST_SLOW=1 runs it")


@contextmanager
def no_collections() -> Iterator[None]:
    """A million channels live to the end: looking at them over and over finds nothing."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Delays:
    """A network's delays: 1 to 4 ticks, by a seed.

    Args:
        seed: of the delays.
    """

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits
        self.frames = 0

    def __call__(self, src: int, dst: int) -> float:
        self.frames += 1
        return (self._bits(2) + 1) * TICK


class Trace(Delays):
    """Delays that keep a hash of all that happens: when each frame is sent, from where to where, and its key.

    Args:
        seed: of the delays.
        loop: whose clock counts.
    """

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed)
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)

    def __call__(self, src: int, dst: int) -> float:
        delay = super().__call__(src, dst)
        self.note(f"{src}→{dst} {delay}")
        return delay

    def note(self, what: str) -> None:
        """Something happens."""
        self._hash.update(f"{self._loop.time()} {what}\n".encode())

    def digest(self) -> str:
        """What sums up the run."""
        return self._hash.hexdigest()


async def check_collectives(pg: ProcessGroup) -> float:
    """The three collectives with the most different patterns; each rank checks its own results."""
    size, rank = pg.size, pg.rank
    tensor = np.arange(8) * (rank + 1)
    await pg.all_reduce(tensor)
    assert np.array_equal(tensor, np.arange(8) * (size * (size + 1) // 2))
    mine = np.arange(size) * size + rank  # for rank j: j · size + rank
    out = await pg.all_to_all(mine)
    assert np.array_equal(out, rank * size + np.arange(size))
    await pg.barrier()
    return core_of(pg).loop.time()


def simulate(size: int, delays: Delays, loop: VirtualLoop) -> list[float]:
    """Run a cluster of `size` ranks; returns when each was done."""
    try:
        network = MemoryNetwork(delays)
        return loop.run_until_complete(run_cluster(size, check_collectives, network=network, timeout=1000))
    finally:
        loop.close()


@pytest.fixture
def keys_in_trace(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """Traces put in this list hear of every frame's header, too."""
    traces: list[Trace] = []
    post = MemoryLink.post

    def noted(self: MemoryLink, header: bytes, *rest: object) -> None:
        frame = parse(header)
        for trace in traces:
            trace.note(f"{frame.type} {frame.context} {frame.stream} {frame.seq} {frame.part}")
        post(self, header, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryLink, "post", noted)
    return traces


def test_the_same_seed_gives_the_same_trace(keys_in_trace: list[Trace]) -> None:
    def traced(seed: int) -> tuple[str, int, list[float]]:
        loop = VirtualLoop()
        trace = Trace(seed, loop)
        keys_in_trace[:] = [trace]
        ended = simulate(24, trace, loop)
        return trace.digest(), trace.frames, ended

    first = traced(5)
    assert first == traced(5)
    assert first[1] > 24 * 23 * 2  # all_to_all alone: a dial and a message for each pair
    assert first[0] != traced(6)[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "size", [pytest.param(150, marks=pytest.mark.slow(MORE)), pytest.param(1000, marks=[SLOW, LONG])]
)
def test_many_ranks(size: int) -> None:
    with no_collections():
        delays = Delays(7)
        ended = simulate(size, delays, VirtualLoop())
        assert len(ended) == size
        assert delays.frames > size * (size - 1) * 2
