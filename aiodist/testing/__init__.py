"""Public helpers for testing programs, and implementations, of aiodist. Nothing in the package imports them.

spmd            an async test function on n real processes
run_cluster     n ranks in this process, over memory channels
run_virtual     … in virtual time
check_backend, check_store   what every implementation must do

What a name needs is loaded at its first use: wherever aiodist is installed, every run of pytest imports this
package, for its plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from aiodist.testing.outcome import RanksFailed
from aiodist.testing.spmd import spmd  # not later: the module would be found by this name

if TYPE_CHECKING:
    from aiodist.testing.clock import SimulationStuck as SimulationStuck
    from aiodist.testing.clock import VirtualLoop as VirtualLoop
    from aiodist.testing.clock import run_virtual as run_virtual
    from aiodist.testing.cluster import run_cluster as run_cluster
    from aiodist.testing.conformance_backend import check_backend as check_backend
    from aiodist.testing.conformance_store import check_store as check_store

__all__ = [
    "RanksFailed",
    "SimulationStuck",
    "VirtualLoop",
    "check_backend",
    "check_store",
    "run_cluster",
    "run_virtual",
    "spmd",
]


_MODULE_OF = {
    "SimulationStuck": "clock",
    "VirtualLoop": "clock",
    "check_backend": "conformance_backend",
    "check_store": "conformance_store",
    "run_cluster": "cluster",
    "run_virtual": "clock",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
