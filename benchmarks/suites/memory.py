"""Memory of a rank above its tensors, at the peak of some all_reduces, on four ranks and on many."""

from __future__ import annotations

from functools import partial

from benchmarks.crew import AbsentError, Crew, CrewError, free_port
from benchmarks.peers import AIODIST, Peer
from benchmarks.run import Run, Step

SIZE = 4
MANY = 64


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
            above = crew.call("memory", port=free_port(), nbytes=nbytes)
    except (AbsentError, CrewError) as error:
        run.results.note(f"memory: {error}")
        return
    largest = [float(max(above))]
    run.results.add("memory", "above tensors", peer.name, largest, ranks=size, nbytes=nbytes, unit="B")
