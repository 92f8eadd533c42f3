"""Memory of a rank above its tensors, at the peak of some all_reduces, on four ranks and on many."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from benchmarks.harness.crew import Crew, free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.with_aiodist import AiodistPeer

SIZE = 4
MANY = 64
_SAMPLED = 2e-3  # seconds between looks at the memory of few ranks


def memory(run: Run) -> list[Step]:
    """One step for each world size, on fresh processes: the baseline is after imports, before init."""
    sizes = {SIZE: 16 << 20} if run.settings.quick else {SIZE: 64 << 20, MANY: 4 << 20}
    return [
        Step("memory", f"{size} ranks", partial(_memory, run, size, nbytes)) for size, nbytes in sizes.items()
    ]


def _memory(run: Run, size: int, nbytes: int) -> None:
    with Crew(AIODIST, size) as crew:
        largest = float(max(crew.do(above_tensors, port=free_port(), nbytes=nbytes)))
    run.results.add("memory", "above tensors", "aiodist", [largest], ranks=size, nbytes=nbytes, unit="B")


async def above_tensors(peer: AiodistPeer, port: int, nbytes: int) -> int:
    """On a rank: bytes at the peak of some all_reduces, above what there was before, and the tensor."""
    before = resident()
    await peer.connect(port)
    tensor = np.zeros(nbytes // 4, np.float32)
    with Peak(_SAMPLED * max(1, peer.size / 4)) as peak:
        for _ in range(5):
            await peer.pg.all_reduce(tensor)
    return max(peak.most, resident()) - before - nbytes


def resident() -> int:
    """Bytes of memory of this process; shared pages count by their share (PSS)."""
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    raise AbsentError("/proc/self/smaps_rollup has no Pss")


class Peak:
    """A sampler of `resident` in a thread while in its block.

    Args:
        every: seconds from one sample to the next.

    Attributes:
        most: the largest sample.
    """

    def __init__(self, every: float) -> None:
        self.most = 0
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._every):
            self.most = max(self.most, resident())
