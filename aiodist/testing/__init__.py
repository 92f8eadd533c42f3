"""Public helpers for testing programs, and implementations, of aiodist. Nothing in the package imports them.

spmd            an async test function on n real processes
run_cluster     n ranks in this process, over memory channels
Chaos           … some of which crash, or cannot reach each other
run_virtual     … in virtual time
check_backend, check_channel, check_store   what every implementation must do
faults          processes that die, connections that break, networks that swallow: a package; its names
                are here, too
"""

from typing import TYPE_CHECKING, Any

from aiodist.testing.chaos import Chaos
from aiodist.testing.clock import SimulationStuck, VirtualLoop, run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.testing.conformance_backend import check_backend
from aiodist.testing.conformance_channel import check_channel
from aiodist.testing.conformance_store import check_store
from aiodist.testing.spmd import RanksFailed, spmd

if TYPE_CHECKING:
    from aiodist.testing.faults import FaultProxy as FaultProxy
    from aiodist.testing.faults import Partition as Partition
    from aiodist.testing.faults import Victims as Victims

__all__ = [
    "Chaos",
    "FaultProxy",
    "Partition",
    "RanksFailed",
    "SimulationStuck",
    "Victims",
    "VirtualLoop",
    "check_backend",
    "check_channel",
    "check_store",
    "run_cluster",
    "run_virtual",
    "spmd",
]


def __getattr__(name: str) -> Any:
    if name not in ("FaultProxy", "Partition", "Victims"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aiodist.testing import faults

    return getattr(faults, name)
