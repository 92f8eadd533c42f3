"""Memory of a rank above its tensors, at the peak of some all_reduces, on four ranks and on many."""

from __future__ import annotations

import threading
from functools import partial

from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import AIODIST, Peer
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.base import Peer as RankPeer

SIZE = 4
MANY = 64
_SAMPLED = 2e-3  # seconds between looks at the memory of few ranks


def memory(run: Run) -> list[Step]:
    """One step for each peer, on fresh processes: the baseline is after imports, before init.

    MPI is left out: importing mpi4py is its init.
    """
    nbytes = 16 << 20 if run.settings.quick else 64 << 20
    steps = [
        Step("memory", peer.name, partial(_memory, run, peer, SIZE, nbytes))
        for peer in run.peers("aiodist", "gloo")
    ]
    if not run.settings.quick:
        steps.append(Step("memory", f"{MANY} ranks", partial(_memory, run, AIODIST, MANY, 4 << 20)))
    return steps


def _memory(run: Run, peer: Peer, size: int, nbytes: int) -> None:
    try:
        with Crew(peer, size) as crew:
            above = crew.do(above_tensors, port=free_port(), nbytes=nbytes)
    except (AbsentError, CrewError) as error:
        run.results.note(f"memory: {error}")
        return
    largest = [float(max(above))]
    run.results.add("memory", "above tensors", peer.name, largest, ranks=size, nbytes=nbytes, unit="B")


async def above_tensors(peer: RankPeer, port: int, nbytes: int) -> int:
    """On a rank: bytes at the peak of some all_reduces, above what there was before, and the tensor."""
    before = resident()
    await peer.connect(port)
    tensor = peer.zeros(nbytes // 4)
    with Peak(_SAMPLED * max(1, peer.size / 4)) as peak:
        for _ in range(5):
            await peer.all_reduce(tensor)
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
