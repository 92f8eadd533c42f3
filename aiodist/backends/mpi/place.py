"""The rank of a process: MPI decides it, and arguments or variables may not contradict. Pure.

A process that is refused cannot just leave: the others would wait for it. So what refused it goes to them on
its card, in the meeting's first call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aiodist.backends.base import Array
from aiodist.base.errors import RendezvousError, UsageError, name_ranks
from aiodist.base.sanitize import one_line

HOST_BYTES = 16
"""Bytes of the name of a host on a card."""

_KEY_AT = HOST_BYTES  # on a card: a byte, whether the operator gave this process a secret
_WORDS_AT = _KEY_AT + 1
_WORDS = 240  # bytes of what refused a process, on its card
_STARTED = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
)  # how many processes the mpirun of Open MPI, and of MPICH, has

_TASKS = "SLURM_STEP_NUM_TASKS"

Environ = Mapping[str, str]


def check_place(mine: int, size: int, rank: int, world_size: int, environ: Environ) -> None:
    """Refuse a place that contradicts MPI's.

    Args:
        mine: rank in COMM_WORLD.
        size: of COMM_WORLD.
        rank: as the user gave it; -1: not.
        world_size: likewise.
        environ: the environment variables.
    """
    started = next((environ[name] for name in _STARTED if environ.get(name)), "")
    if size == 1 and started not in ("", "1"):
        raise UsageError(
            f"mpirun has started {started} processes, but the MPI library has this one alone",
            hint="It is another MPI's: set MPI4PY_LIBMPI to the library of this mpirun: the path of its "
            "libmpi.so.40 (Open MPI) or libmpi.so.12 (MPICH)",
        )
    tasks = environ.get(_TASKS, "") if environ.get("SLURM_STEP_ID") else ""
    if size == 1 and not started and tasks not in ("", "1"):
        raise UsageError(
            f"srun has started {tasks} processes, but the MPI library has this one alone",
            hint="srun and the library use different protocols: try --mpi=pmix (Open MPI) or --mpi=pmi2 "
            "(MPICH); `srun --mpi=list` says what there is. Or use mpirun, or backend 'host'",
        )
    for value, known, names in (
        (size, world_size, ("AIODIST_WORLD_SIZE", "WORLD_SIZE")),
        (mine, rank, ("AIODIST_RANK", "RANK")),
    ):
        given = next(((name, environ[name]) for name in names if environ.get(name)), None)
        if known >= 0:
            given = (names[1].lower(), str(known))
        if given is None or given[1] == str(value):
            continue
        name, text = given
        if size == 1:
            raise UsageError(
                f"{name}={text}, but MPI has this process alone", hint="Start all with `mpirun -n …`"
            )
        raise UsageError(
            f"{name}={text}, but this is rank {mine} of {size} in MPI",
            hint="Leave both to MPI: pass no rank and no world_size, and unset RANK and WORLD_SIZE",
        )


def card(host: bytes, refusal: UsageError | None, has_secret: bool = False) -> Array:
    """The card that a process shows the others first.

    Args:
        host: names its host.
        refusal: why it cannot go on.
        has_secret: the operator gave it one.
    """
    words = b"" if refusal is None else refusal.message.encode(errors="replace")[:_WORDS]
    return np.frombuffer(host + bytes([has_secret]) + words.ljust(_WORDS, b"\0"), np.uint8)


def cards(size: int) -> Array:
    """Room for all ranks' cards."""
    return np.zeros((size, _WORDS_AT + _WORDS), np.uint8)


def refused(rows: Array) -> RendezvousError | None:
    """The error that names which rank cannot go on, and why, from all cards; or None. The same on all ranks.

    Args:
        rows: a row for each rank.
    """
    words = [row[_WORDS_AT:].tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]
    if ranks := [rank for rank, text in enumerate(words) if text]:
        return RendezvousError(
            f"{name_ranks(ranks)} cannot go on: {one_line(words[ranks[0]], _WORDS)}",
            hint="What to do is in that rank's output",
        )
    without = [rank for rank, row in enumerate(rows) if not row[_KEY_AT]]
    if 0 < len(without) < len(rows):
        others = len(rows) - len(without)
        return RendezvousError(
            f"{name_ranks(without)} cannot go on: no secret was given there, as it was to {others} other "
            f"{'rank' if others == 1 else 'ranks'}",
            hint="Set AIODIST_SECRET_FILE (or AIODIST_SECRET) to the same on all ranks (Open MPI: mpirun -x "
            "AIODIST_SECRET_FILE), or on none",
        )
    return None


def together(rows: Array) -> bool:
    """Whether all processes are on one host."""
    return len(np.unique(rows[:, :HOST_BYTES], axis=0)) == 1
