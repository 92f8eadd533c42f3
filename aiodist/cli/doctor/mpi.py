"""mpi4py, and the MPI library behind it, which starts when it is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion

_COST = "backend='mpi' cannot be used"


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """MPI starts in a process of its own."""
    return {"mpi": ProcessQuestion("MPI", examine)}


def examine() -> dict[str, str]:
    """Look for mpi4py and its MPI.

    Returns:
        'version': of mpi4py; 'library': in its own words, 'threads': the level that it grants, both '' where
        it cannot be loaded; 'refused': why the backend does not take it, 'hint': what mends that.
    """
    import mpi4py

    from aiodist.backends.mpi.library import load
    from aiodist.base.errors import BackendUnavailable

    facts = {"version": mpi4py.__version__, "library": "", "threads": "", "refused": "", "hint": ""}
    try:
        load()
    except BackendUnavailable as error:
        facts["refused"], facts["hint"] = error.message, error.hint
    if mpi := sys.modules.get("mpi4py.MPI"):
        granted = mpi.Query_thread()
        levels = ("single", "funneled", "serialized", "multiple")
        facts["library"] = mpi.Get_library_version()
        facts["threads"] = next(
            (level for level in levels if getattr(mpi, f"THREAD_{level.upper()}") == granted), "unknown"
        )
    return facts


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what MPI there is, and how far it bears threads."""
    yield _check(answers["mpi"])


def _check(mpi: ProcessAnswer) -> Finding:
    if mpi.absent == "mpi4py":
        return Finding("MPI", "missing", "mpi4py is not installed", _COST, "pip install 'aiodist[mpi]'")
    if mpi.trouble:
        return Finding("MPI", "missing", f"mpi4py cannot be used: {mpi.trouble}", _COST)
    facts = mpi.facts
    if not facts["library"]:
        value = f"{facts['refused']}, mpi4py {facts['version']}"
        return Finding("MPI", "missing", value, _COST, facts["hint"])
    value = f"{library(facts['library'])}, mpi4py {facts['version']}, threads: {facts['threads']}"
    if facts["refused"]:
        return Finding("MPI", "missing", f"{value}: {facts['refused']}", _COST, facts["hint"])
    return Finding("MPI", "ok", value)


def library(text: str) -> str:
    """'MPICH 5.0.2', 'Open MPI 5.0.11', from what `MPI_Get_library_version` says."""
    first = text.strip().splitlines()[0] if text.strip() else "unknown"
    if match := re.match(r"Open MPI v(\S+?),", first):
        return f"Open MPI {match[1]}"
    if match := re.match(r"(\w+) Version:\s*(\S+)", first):
        return f"{match[1]} {match[2]}"
    return first.strip("\0 ")[:60]
