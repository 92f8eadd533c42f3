"""A script in a process that uses MPI itself, before it or afterwards: `mpi_job.py before|after SCRIPT …`."""

from __future__ import annotations

import sys

from tests.launchers.scripts import run_script

if __name__ == "__main__":
    when, *words = sys.argv[1:]
    if when == "before":
        from mpi4py import MPI
    run_script(words)
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)
    assert ranks == [*range(MPI.COMM_WORLD.size)] and len(ranks) > 1, ranks
