"""Public helpers for testing programs, and implementations, of aiodist. Nothing in the package imports them.

spmd            an async test function on n real processes
run_cluster     n ranks in this process, over memory channels
run_virtual     … in virtual time
check_backend, check_channel, check_store   what every implementation must do
"""

from aiodist.testing.clock import SimulationStuck, VirtualLoop, run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.testing.conformance_backend import check_backend
from aiodist.testing.conformance_channel import check_channel
from aiodist.testing.conformance_store import check_store
from aiodist.testing.spmd import RanksFailed, spmd

__all__ = [
    "RanksFailed",
    "SimulationStuck",
    "VirtualLoop",
    "check_backend",
    "check_channel",
    "check_store",
    "run_cluster",
    "run_virtual",
    "spmd",
]
