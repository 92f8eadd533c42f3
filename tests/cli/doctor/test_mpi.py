"""MPI: what is said of it here, without its library, and of each one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from aiodist.cli.doctor.mpi import examine, findings, library
from aiodist.cli.doctor.topic import Finding, ProcessAnswer
from tests.cli.doctor.asks import MACHINE, ask
from tests.levels import COSTLY


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_mpi_without_its_library_is_told_as_the_backend_tells_it() -> None:
    facts = ask(examine, MPI4PY_LIBMPI="/no/such/libmpi.so").facts
    assert (facts["library"], facts["threads"]) == ("", "")
    code = "import asyncio, aiodist; asyncio.run(aiodist.init_process_group('mpi'))"
    environ = {**os.environ, "MPI4PY_LIBMPI": "/no/such/libmpi.so"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].endswith(f"{facts['refused']}. {facts['hint']}")


def check_mpi(mpi: ProcessAnswer) -> Finding:
    """What is said of it."""
    (found,) = findings({"mpi": mpi}, MACHINE)
    return found


def test_mpi() -> None:
    facts = {"version": "4.1.2", "library": "MPICH Version:      5.0.2\nMore"}
    facts |= {"threads": "multiple", "refused": "", "hint": ""}
    assert check_mpi(ProcessAnswer(facts)).value == "MPICH 5.0.2, mpi4py 4.1.2, threads: multiple"
    refused = check_mpi(ProcessAnswer({**facts, "refused": "one thread only", "hint": "do this"}))
    assert (refused.state, refused.fix) == ("missing", "do this") and "one thread only" in refused.value
    assert check_mpi(ProcessAnswer(trouble="x", absent="mpi4py")).fix == "pip install 'aiodist[mpi]'"
    without = {**facts, "library": "", "threads": "", "refused": "no library", "hint": "Install one"}
    found = check_mpi(ProcessAnswer(without))
    assert (found.state, found.value, found.fix) == ("missing", "no library, mpi4py 4.1.2", "Install one")
    assert check_mpi(ProcessAnswer(trouble="no answer within 20 s")).state == "missing"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Open MPI v5.0.11, package: Open MPI root@x, ident: 5.0.11", "Open MPI 5.0.11"),
        ("MPICH Version:\t4.2.0\nMPICH Release date: x", "MPICH 4.2.0"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS\n\0", "Intel(R) MPI Library 2021.11 for Linux* OS"),
        ("", "unknown"),
    ],
)
def test_names_of_mpi_libraries(text: str, short: str) -> None:
    assert library(text) == short
