"""`aiodist launch --via srun|mpirun`: these start the agents, which find each other by their means."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from aiodist.base.errors import UsageError
from aiodist.launch.remote.hosts import Host


def through(
    via: str, hosts: Sequence[Host], words: Sequence[str], environ: Mapping[str, str], nproc: str, folder: str
) -> NoReturn:
    """Become srun or mpirun, which start the agents; never returns.

    Args:
        via: 'srun' or 'mpirun'.
        hosts: where; none: where the allocation says.
        words: of `aiodist run`.
        environ: variables for the agents; they go by the environment, and are in no command line.
        nproc: workers on a host that says no number.
        folder: to work in; '': here.

    Raises:
        UsageError: there is no such program, or the hosts have different numbers of workers.
    """
    command = command_for(via, hosts, words, environ, nproc, folder)
    os.environ.update(environ)
    sys.stdout.flush()
    os.execvp(command[0], command)


def command_for(
    via: str, hosts: Sequence[Host], words: Sequence[str], environ: Mapping[str, str], nproc: str, folder: str
) -> list[str]:
    """The command line; errors as of `through`."""
    if via not in ("srun", "mpirun"):
        raise UsageError(f"--via {via} has no meaning", hint="Use srun or mpirun; without it, ssh is used")
    program = shutil.which(via) or (shutil.which("mpiexec") if via == "mpirun" else None)
    if program is None:
        raise UsageError(f"there is no {via} here", hint="Put it on PATH")
    slots = {host.slots for host in hosts}
    if len(slots) > 1 or any(host.devices for host in hosts):
        raise UsageError(
            f"--via {via} starts the same number of workers on every host",
            hint="Give each host the same number",
        )
    workers = ["--nproc-per-node", str(slots.pop()) if slots and 0 not in slots else nproc]
    agent = [sys.executable, "-m", "aiodist", "run", *workers, *words]
    names = ",".join(host.name.rpartition("@")[2] for host in hosts)
    count = str(len(hosts))
    if via == "srun":
        where = ["--nodes", count, "--nodelist", names] if hosts else []
        where += ["--chdir", folder] if folder else []
        # Agents end each other, and all say the same code; srun would end them before they have.
        return [program, *where, "--ntasks-per-node=1", "--kill-on-bad-exit=0", *agent]
    if _is_open_mpi(program):
        named = [word for name in environ for word in ("-x", name)]
        where = ["-n", count, "--host", names] if hosts else []
        where += ["--wdir", folder] if folder else []
        return [program, *where, "--map-by", "ppr:1:node", *named, *agent]
    where = ["-n", count, "-hosts", names] if hosts else []
    where += ["-wdir", folder] if folder else []
    return [program, *where, "-ppn", "1", *agent]


def _is_open_mpi(program: str) -> bool:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in said.stdout or "OpenRTE" in said.stdout or "PRRTE" in said.stdout
