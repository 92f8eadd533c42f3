"""The table of topics, and the examination of a machine by it.

A topic's file says what it looks at: see `topic`.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aiodist.base.environment import placement
from aiodist.base.environment.cores import cores
from aiodist.base.environment.placement import LAUNCHERS
from aiodist.base.environment.processor_load import disturbance_now
from aiodist.base.errors import UsageError
from aiodist.cli.doctor import (
    backends,
    cupy,
    driver,
    host,
    mpi,
    network,
    packages,
    room,
    settings,
    system,
    torch,
)
from aiodist.cli.doctor.asking import Waiting, ask
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessQuestion, describe

Environ = Mapping[str, str]

# Of a process that mpirun or srun started: a child with them would take itself for that rank.
_OF_MPI = ("PMI_", "PMIX_", "PRTE_", "OMPI_COMM_", "OMPI_UNIVERSE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "SLURM_")
_SAMPLE_SECONDS = 0.3  # seconds for which the cores are looked at


class Topic(NamedTuple):
    """A topic, by its functions; see `topic`.

    Attributes:
        section: the heading of its findings.
        findings: makes them.
        questions: to processes of their own.
    """

    section: str
    findings: Callable[[Answers, Machine], Iterable[Finding]]
    questions: Callable[[Machine], Mapping[str, ProcessQuestion]] = lambda machine: {}


TOPICS = (
    Topic("system", system.findings),
    Topic("python", packages.findings, packages.questions),
    Topic("room", room.findings),
    Topic("network", network.findings, network.questions),
    Topic("settings", settings.findings),
    Topic("gpu", driver.findings, driver.questions),
    Topic("gpu", cupy.findings, cupy.questions),
    Topic("libraries", torch.findings, torch.questions),
    Topic("libraries", mpi.findings, mpi.questions),
    Topic("backends", host.findings, host.questions),
    Topic("backends", backends.findings, backends.questions),
)
"""All topics, in the order of the report."""


def examine(
    environ: Environ,
    *,
    ranks: int | None,
    limit: float,
    waiting: Waiting | None,
) -> dict[str, list[Finding]]:
    """Look at everything → the findings of each section.

    Args:
        environ: the environment variables.
        ranks: how many ranks this host is to have; None: as many as a launcher says, else one for each core.
        limit: seconds for drivers and libraries to answer.
        waiting: for progress.
    """
    others = disturbance_now(_SAMPLE_SECONDS)  # before those that are asked take the cores
    with contextlib.ExitStack() as stack:
        folder = ""
        with contextlib.suppress(OSError):  # not every container has one to write to
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiodist-doctor-"))
        machine = Machine(environ, ranks or _ranks(environ), limit, folder, others)
        questions: dict[str, ProcessQuestion] = {}
        for topic in TOPICS:
            questions |= topic.questions(machine)
        answers = ask(questions, _undisturbed(environ, folder), limit, waiting)
    report: dict[str, list[Finding]] = {}
    for topic in TOPICS:
        report.setdefault(topic.section, []).extend(_found(topic, answers, machine))
    return report


def _found(topic: Topic, answers: Answers, machine: Machine) -> list[Finding]:
    """A topic's findings; that it fails itself is one, too: the others' are worth showing."""
    try:
        return list(topic.findings(answers, machine))
    except Exception as error:
        return [Finding(topic.section, "limited", f"could not be looked at: {describe(error)}")]


def _ranks(environ: Environ) -> int:
    """As many as a launcher says that this host has, else one for each core."""
    with contextlib.suppress(UsageError):
        place = placement(environ)
        if place.launcher != "alone" and place.local_world_size:
            return place.local_world_size
    return max(1, int(cores()))


def _undisturbed(environ: Environ, folder: str) -> dict[str, str]:
    """The environment of processes that no launcher started, and that make nothing in the user's home."""
    theirs = {"AIODIST_STORE", "AIODIST_NEWCOMER", "MASTER_ADDR", "MASTER_PORT"}
    for row in LAUNCHERS:
        theirs.update(row.evidence, row.any_of, row.rank, row.world_size, row.node_rank, row.node_count)
        theirs.update(row.local_rank, row.local_world_size)
    free = {
        name: value for name, value in environ.items() if name not in theirs and not name.startswith(_OF_MPI)
    }
    if not (free.get("AIODIST_SECRET") or free.get("AIODIST_SECRET_FILE")):
        free["AIODIST_SECRET"] = secrets.token_hex(16)
    if folder:
        free.setdefault("CUPY_CACHE_DIR", folder)
    return free
