"""Memory of a rank above its tensors, at the peak of 64 MiB all_reduces on four ranks."""

from __future__ import annotations

from functools import partial

from benchmarks.crew import AbsentError, Crew, CrewError, free_port
from benchmarks.peers import Peer
from benchmarks.run import Run, Step

SIZE = 4


def memory(run: Run) -> list[Step]:
    """One step for each peer, on fresh processes: the baseline is after imports, before init.

    MPI is left out: importing mpi4py is its init.
    """
    nbytes = 16 << 20 if run.settings.quick else 64 << 20
    return [
        Step("memory", peer.name, partial(_memory, run, peer, nbytes))
        for peer in run.peers("aiodist", "gloo")
    ]


def _memory(run: Run, peer: Peer, nbytes: int) -> None:
    try:
        with Crew(peer, SIZE) as crew:
            above = crew.call("memory", port=free_port(), nbytes=nbytes)
    except (AbsentError, CrewError) as error:
        run.results.note(f"memory: {error}")
        return
    largest = [float(max(above))]
    run.results.add("memory", "above tensors", peer.name, largest, ranks=SIZE, nbytes=nbytes, unit="B")
