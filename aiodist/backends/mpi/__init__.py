"""Collectives by an MPI library, through mpi4py. Imports neither until a group is made of it.

engine      MPI's non-blocking calls behind the seam of `foreign`
progress    what posts and tests them: one thread a process, `process` starts and ends it
library     the only place that imports mpi4py
meeting     how processes that mpirun started find each other
place       the rank of a process, and what it tells the others where that is refused; pure
tables, widened, backoff    pure
"""

from __future__ import annotations

from aiodist.backends.mpi.engine import MpiEngine

__all__ = ["MpiEngine"]
