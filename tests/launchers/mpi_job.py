"""A script in a process that has initialised MPI, by which it meets the others: `mpi_job.py SCRIPT …`."""

from __future__ import annotations

import sys

from mpi4py import MPI

from tests.launchers.scripts import run_script

if __name__ == "__main__":
    run_script(sys.argv[1:])
    ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)
    assert ranks == [*range(MPI.COMM_WORLD.size)] and len(ranks) > 1, ranks
