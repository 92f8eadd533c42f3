"""Agents that another launcher has started, one a node: inside a step of srun, or under mpirun. Pure.

    srun -N2 --ntasks-per-node=1 aiodist run …
    mpirun -n 2 --map-by ppr:1:node aiodist run …

These say which agent this is, and of how many. So it needs neither --nnodes nor an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.base.environment import placement
from aiodist.base.errors import UsageError

_HOW = {
    "Slurm": "srun --ntasks-per-node=1",
    "Open MPI": "mpirun --map-by ppr:1:node",
    "MPICH": "mpiexec -ppn 1",
}
"""Launchers that are known here, and what makes them start one agent a node."""


@dataclass(frozen=True)
class Inside:
    """An agent's place among those that another launcher started.

    Attributes:
        launcher: its name, as of `placement`.
        nnodes: agents, one a node.
        node_rank: of this one.
    """

    launcher: str
    nnodes: int
    node_rank: int


def inside(environ: Mapping[str, str]) -> Inside | None:
    """The place that the innermost launcher gives this agent; None where it started this agent alone.

    Raises:
        UsageError: it started several agents on a node.
    """
    if environ.get("AIODIST_STORE") and environ.get("RANK"):
        return None  # a worker starts a job of its own; the step is that of its agent
    try:
        place = placement({name: value for name, value in environ.items() if name not in _PLAIN})
    except UsageError:
        return None
    if place.launcher not in _HOW or place.world_size == 1:
        return None
    here, nodes = place.local_world_size, place.node_count
    if nodes is None and here == 1:
        nodes = place.world_size
    if nodes != place.world_size or here not in (1, None):
        several = "several" if here is None else str(here)
        raise UsageError(
            f"{place.launcher} started {place.world_size} agents, {several} of them on this node, and one "
            "agent starts all workers of its node",
            hint=f"Start one on each node: {_HOW[place.launcher]} aiodist run …; AIODIST_ALONE=1 if each "
            "is meant to be a job of its own",
        )
    return Inside(place.launcher, place.world_size, place.rank)


_PLAIN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "AIODIST_RANK",
    "AIODIST_STORE",
    "TORCHELASTIC_RUN_ID",
)
"""Variables of workers; an agent is none."""
