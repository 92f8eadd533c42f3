"""torch and MPI."""

from __future__ import annotations

import re

from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.asking import Answer

_NO_MPI = "backend='mpi' cannot be used"


def check_torch(torch: Answer, devices: int) -> Finding:
    """Whether torch is here, and sees the same devices as CuPy."""
    if torch.absent == "torch":
        cost = "nothing, unless the program uses torch"
        return Finding("torch", "missing", "not installed", cost, "pip install torch")
    if torch.trouble:
        again = "pip install --force-reinstall torch"
        return Finding(
            "torch", "missing", f"cannot be used: {torch.trouble}", "torch tensors cannot be used", again
        )
    facts = torch.facts
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else "built without CUDA"
    value = f"{facts['version']}, {built}"
    if devices and not facts["devices"]:
        sees = f"{value}; it sees no device" if facts["cuda"] else value
        cost = "torch tensors are on the host; CuPy's may be on devices"
        return Finding(
            "torch", "limited", sees, cost, "pip install --force-reinstall torch, built for this driver"
        )
    return Finding("torch", "ok", value)


def check_mpi(mpi: Answer) -> Finding:
    """mpi4py, the library behind it, and how far it bears threads."""
    if mpi.absent == "mpi4py":
        return Finding("MPI", "missing", "mpi4py is not installed", _NO_MPI, "pip install 'aiodist[mpi]'")
    if mpi.trouble:
        return Finding("MPI", "missing", f"mpi4py cannot be used: {mpi.trouble}", _NO_MPI)
    facts = mpi.facts
    if not facts["library"]:
        value = f"{facts['refused']}, mpi4py {facts['version']}"
        return Finding("MPI", "missing", value, _NO_MPI, facts["hint"])
    value = f"{library(facts['library'])}, mpi4py {facts['version']}, threads: {facts['threads']}"
    if facts["refused"]:
        return Finding("MPI", "missing", f"{value}: {facts['refused']}", _NO_MPI, facts["hint"])
    return Finding("MPI", "ok", value)


def library(text: str) -> str:
    """'MPICH 5.0.2', 'Open MPI 5.0.11', from what `MPI_Get_library_version` says."""
    first = text.strip().splitlines()[0] if text.strip() else "unknown"
    if match := re.match(r"Open MPI v(\S+?),", first):
        return f"Open MPI {match[1]}"
    if match := re.match(r"(\w+) Version:\s*(\S+)", first):
        return f"{match[1]} {match[2]}"
    return first.strip("\0 ")[:60]
