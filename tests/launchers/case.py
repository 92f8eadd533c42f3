"""What a launcher's case is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.launchers.ground import ROOT, Ground

TORCH = "torch==2.13.0"
TORCH_BIN = ("torch", TORCH, "accelerate", "lightning")
"""An environment for all that stand on torch."""

ONE_HOST = ((0, 2, 0, 1), (1, 2, 0, 1))
TWO_HOSTS = ((0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2))
EACH_ALONE = ((0, 1, 0, 2), (0, 1, 1, 2))

WITH_TESTS = {"PYTHONPATH": str(ROOT)}
"""For the scripts beside this module, which import each other."""

Places = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Commands:
    """Commands that are started together, in this order, and make one job.

    Attributes:
        lines: of the job.
        env: variables for all.
        before: daemons, which are ended with the job.
        ready: returns when the daemons are ready.
    """

    lines: list[list[str]]
    env: dict[str, str] = field(default_factory=dict)
    before: list[list[str]] = field(default_factory=list)
    ready: Callable[[], None] = lambda: None


Make = Callable[[Ground, list[str]], Commands]
"""Makes the commands that run a script, given with its arguments."""


@dataclass(frozen=True)
class Case:
    """One launcher.

    Attributes:
        name: as the table has it.
        make: makes its commands.
        places: local rank and size, node and count, by rank.
        own: it runs a script of its own kind, which says hello, and no other.
        mpi: its ranks talk by MPI, for which a killed rank is another matter: none is killed.
    """

    name: str
    make: Make
    places: Places
    own: bool = False
    mpi: bool = False


def path_with(bin: Path) -> str:
    """A PATH that begins with this folder."""
    return f"{bin}{os.pathsep}{os.environ['PATH']}"
