"""The suites, by name, in the order in which they run; each gives its steps."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness.run import Run, Step
from benchmarks.speed.suites import (
    application,
    beside,
    calls,
    checkpoints,
    cold,
    hosts,
    launch,
    memory,
    quantized,
    service,
    sim,
    startup,
    store,
    sweeps,
    watched,
)
from benchmarks.speed.suites import (
    steps as training_steps,
)

COMPARED: dict[str, Callable[[Run], list[Step]]] = {
    **{name: sweeps.collective(name) for name in sweeps.NAMES},
    "cold": cold.cold,
    "service": service.service,
    "halves": sweeps.halves,
    "inflight": sweeps.in_flight,
    "tcp": sweeps.tcp,
    "mpi": sweeps.over_mpi,
    "lateness": beside.lateness,
    "load": beside.loaded,
    "overlap": beside.overlap,
    "memory": memory.memory,
    "store": store.store,
    "launch": launch.launch,
    "init": startup.init,
    "hosts": hosts.hosts,
}
"""What a run without names does: half an hour of it, beside the other libraries."""

ALONE: dict[str, Callable[[Run], list[Step]]] = {
    "checkpoints": checkpoints.checkpoints,
    "quantized": quantized.quantized,
    "steps": training_steps.steps_of_training,
    "calls": calls.blocking_calls,
    "application": application.application,
    "watched": watched.watched,
    "sim": sim.sim,
}
"""What runs only where it is named."""

SUITES = COMPARED | ALONE


def steps(run: Run) -> list[Step]:
    """The steps of all wanted suites. Sweeps go world size by world size, so that few processes are up."""
    wanted = [name for name in SUITES if name in (run.settings.only or COMPARED)]
    found = [step for name in wanted for step in SUITES[name](run)]
    small = [step for step in found if step.ranks == 2]
    swept: list[Step] = []
    for size in run.settings.ranks:
        here = [step for step in found if step.ranks == size]
        swept += [*here, _end(run, size)] if here else []
    if 2 not in run.settings.ranks and small:
        swept += [*small, _end(run, 2)]
    return swept + [step for step in found if step.ranks == 0]


def _end(run: Run, size: int) -> Step:
    return Step("end", f"of {size} ranks", lambda: run.close_crews(size), size)
