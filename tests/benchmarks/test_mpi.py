"""Finding MPI: the option, PATH, beside the interpreter; and telling one MPI from the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import mpi

OPEN_MPI, MPICH = mpi.FLAVOURS


def install(prefix: Path, *files: str) -> Path:
    for name in files:
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return prefix


def says(launcher: str, env: Mapping[str, str]) -> str:
    """As if `mpirun` were MPICH's."""
    return "mpirun (Open MPI) 5" if launcher.endswith("ompirun_wrapper") else "HYDRA build details"


def found(flavour: mpi.Flavour, chosen: str | None, path: list[str], prefix: Path) -> mpi.Mpi:
    result = mpi.find(flavour, chosen, path, str(prefix), says)
    assert isinstance(result, mpi.Mpi), result
    return result


def test_two_wheels_in_one_prefix_are_told_apart(tmp_path: Path) -> None:
    prefix = install(
        tmp_path,
        "bin/mpirun",
        "bin/mpiexec.hydra",
        "bin/ompirun_wrapper",
        "lib/libmpi.so.12",
        "lib/libmpi.so.40",
    )
    ours = found(OPEN_MPI, None, [], prefix)
    assert ours.launcher == str(prefix / "bin/ompirun_wrapper")
    assert ours.env["MPI4PY_LIBMPI"] == str(prefix / "lib/libmpi.so.40")
    assert ours.env["OPAL_PREFIX"] == str(prefix)
    other = found(MPICH, None, [], prefix)
    assert other.launcher == str(prefix / "bin/mpiexec.hydra")
    assert other.env["MPI4PY_LIBMPI"] == str(prefix / "lib/libmpi.so.12")
    assert "OPAL_PREFIX" not in other.env


def test_path_comes_before_the_interpreter(tmp_path: Path) -> None:
    one = install(tmp_path / "one", "bin/mpirun")
    two = install(tmp_path / "two", "bin/mpirun")
    assert found(MPICH, None, [str(one / "bin")], two).where == str(one)
    assert found(MPICH, None, ["/nowhere/bin"], two).where == str(two)


def test_who_is_named_is_the_only_one_looked_at(tmp_path: Path) -> None:
    install(tmp_path / "one", "bin/mpirun")
    result = mpi.find(MPICH, str(tmp_path / "two"), [str(tmp_path / "one/bin")], str(tmp_path / "one"), says)
    assert result == f"no launcher of it in {tmp_path / 'two'}"


def test_without_its_library_mpi4py_is_told_the_name(tmp_path: Path) -> None:
    assert found(MPICH, None, [], install(tmp_path, "bin/mpirun")).env == {"MPI4PY_MPIABI": "mpich"}


def test_a_launcher_of_another_mpi_is_not_taken(tmp_path: Path) -> None:
    result = mpi.find(OPEN_MPI, None, [], str(install(tmp_path, "bin/mpirun")), says)
    assert result == "no launcher of it on PATH or beside the interpreter"


@pytest.mark.parametrize("name", ["absent", "no-program"])
def test_what_cannot_be_run_says_nothing(tmp_path: Path, name: str) -> None:
    install(tmp_path, "no-program")
    assert mpi.version_of(str(tmp_path / name), {}) == ""
