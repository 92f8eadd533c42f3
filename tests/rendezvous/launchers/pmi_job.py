"""What the processes of an mpirun do in test_pmi.py: `mpirun -n 4 python pmi_job.py PROGRAM`."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from aiodist.base.errors import RendezvousError
from aiodist.rendezvous.launchers.pmi import MAX_TEXT, Pmi

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
PATIENCE = 60.0


async def passed(text: str, teller: int = 0, timeout: float = PATIENCE) -> str:
    """What all have after one process has told a text."""
    pmi = await Pmi.connect(os.environ, timeout)
    if teller == RANK:
        await pmi.tell(text)
        return text
    return await pmi.ask()


async def some(first: int = 0) -> None:
    """Several texts, by one connection and by another."""
    pmi = await Pmi.connect(os.environ, PATIENCE)
    for text in (f"{first} [::1]:80 a=b&c", "\n\0ü€", "", "y" * MAX_TEXT):
        if RANK == 0:
            await pmi.tell(text)
        else:
            assert await pmi.ask() == text
    for teller in range(SIZE):
        assert await passed(f"{first} of {teller}", teller) == f"{first} of {teller}"


def add_up() -> None:
    """By MPI, which is initialised by then, at the latest."""
    from mpi4py import MPI

    assert MPI.COMM_WORLD.Get_size() == SIZE
    assert MPI.COMM_WORLD.allreduce(RANK + 1) == SIZE * (SIZE + 1) // 2


async def texts() -> None:
    """Nothing else."""
    await some()


async def mpi_later() -> None:
    """MPI is initialised afterwards, and the texts go on."""
    await some()
    assert os.get_blocking(int(os.environ["PMI_FD"]))
    add_up()
    await some(1)
    add_up()


async def mpi_before() -> None:
    """MPI is initialised first."""
    add_up()
    await some()
    add_up()


async def mpi_without_mpi4py() -> None:
    """Another library of this process has initialised MPI. It finalises it after our own exit handlers."""
    mpi = ctypes.CDLL(os.environ["MPI4PY_LIBMPI"])
    assert mpi.MPI_Init(None, None) == 0
    atexit.register(mpi.MPI_Finalize)
    await some()


async def one_stays() -> None:
    """Rank 0 goes on when all others have ended, and mpirun has seen it."""
    pids = [int(await passed(str(os.getpid()), rank)) for rank in range(SIZE)]
    ends = [os.pidfd_open(pid) for pid in pids if pid != os.getpid()] if RANK == 0 else []
    assert await passed("all are watched") == "all are watched"
    for end in ends:
        assert select.select([end], [], [], PATIENCE)[0]
    for _ in range(3 * len(ends)):
        await Pmi.connect(os.environ, PATIENCE)


async def one_cannot_start() -> None:
    """Rank 0 fails before it has told anything; the others, which wait already, would do so for long.

    Where it fails while mpirun still starts the others, mpirun may kill those that it has, and wait for the
    last one.
    """
    pmi = await Pmi.connect(os.environ, 3600)
    came = [Path(tempfile.gettempdir(), f"aiodist-pmi-{os.getppid()}-{rank}") for rank in (1, 2)]
    if RANK == 0:
        while not all(path.exists() for path in came):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for path in came:
            path.unlink()
        raise SystemExit("rank 0 has no address")
    came[RANK - 1].touch()
    await pmi.ask()


def children() -> None:
    """Those of a process that has spoken may not: neither forked ones nor programs."""
    run(some())
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    else:
        sys.exit(7 if refused("forked from") else 1)  # with exit handlers, which are copies of the parent's
    program = [sys.executable, __file__, "texts"]
    ended = subprocess.run(program, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert "was not handed down to this process" in ended.stderr
    run(some(1))


def refused(why: str) -> bool:
    """Whether this process may not speak, for that reason."""
    try:
        run(Pmi.connect(os.environ, PATIENCE))
    except RendezvousError as error:
        return why in error.message
    return False


def run(what: Coroutine[Any, Any, Any]) -> None:
    """Every other rank on the other loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if RANK % 2 else None) as runner:
        runner.run(what)


if __name__ == "__main__":
    program = globals()[sys.argv[1]]()
    if program is not None:
        run(program)
    print("<well>", flush=True)
