"""Room for the ranks of this host: cores, whether others take these, and open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from aiodist.base.environment.cores import affinity, quota
from aiodist.base.environment.processor_load import Disturbance, reasons
from aiodist.cli.doctor.topic import Answers, Finding, Machine

# Of each rank, where every rank has talked to every other: memory, bells, sockets, and watched processes.
_FILES_PER_RANK, _OWN_FILES = 11, 64


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what this process may use."""
    yield check_cores(os.cpu_count() or 1, affinity(), quota(), machine.ranks)
    yield check_disturbance(machine.disturbance)
    yield check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE), machine.ranks)


def check_cores(cpus: int, allowed: int, share: float | None, ranks: int) -> Finding:
    """Whether each rank has a core.

    Args:
        cpus: of the machine.
        allowed: CPUs that this process may run on.
        share: CPUs' worth of time that its container may use; None: no quota.
        ranks: that this host is to have.
    """
    cores = allowed if share is None else min(allowed, share)
    limit = "no quota" if share is None else f"quota {share:g}"
    value = f"{cores:g} for {_ranks(ranks)} (affinity {allowed} of {cpus} CPUs, {limit})"
    if ranks <= cores:
        return Finding("cores", "ok", value)
    cost = "ranks take turns on a core: a rank that waits for another waits for its turn, too"
    return Finding("cores", "limited", value, cost, f"aiodist run --nproc-per-node {max(1, int(cores))} …")


def check_disturbance(seen: Disturbance | None) -> Finding:
    """Whether others take the cores.

    Args:
        seen: the time that they take at present; None where the system does not say.
    """
    if seen is None:
        return Finding("idle", "ok", "this system does not say what others take")
    load = f"load {seen.load:.1f}"
    if why := reasons(seen):
        cost = "ranks wait for their turn on a core, and figures of aiodist bench are not to be trusted"
        fix = "end what runs beside, or wait for its end" if seen.worst else ""
        return Finding("idle", "limited", f"{why} ({load})", cost, fix)
    return Finding("idle", "ok", f"other processes take {100 * seen.others:.0f} % of the cores ({load})")


def check_open_files(soft: int, hard: int, ranks: int) -> Finding:
    """Whether each rank may have as many descriptors as it needs.

    Args:
        soft: how many this process may have; `resource.RLIM_INFINITY`: no limit.
        hard: how far it may raise that.
        ranks: that this host is to have.
    """
    needed = _FILES_PER_RANK * ranks + _OWN_FILES
    allowed = "no limit" if soft == resource.RLIM_INFINITY else str(soft)
    value = f"{allowed}; each of {_ranks(ranks)} needs up to {needed}"
    if _suffices(soft, needed):
        return Finding("open files", "ok", value)
    cost = "ranks that cannot open a connection or map a local peer's memory do not start"
    raised = f"ulimit -n {needed}"
    fix = raised if _suffices(hard, needed) else f"ulimit -Hn {needed}, as root, and {raised}"
    return Finding("open files", "limited", value, cost, fix)


def _suffices(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _ranks(ranks: int) -> str:
    return f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"
