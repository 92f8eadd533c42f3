"""The backend 'mpi' on real processes of Open MPI and of MPICH, started by their own mpirun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks` is not part of the wheel

from benchmarks import mpi
from tests.levels import COSTLY, MORE, few
from tests.ports import free_port
from tests.processes import run_to_end

ROOT = str(Path(__file__).parents[2])
JOB = Path(__file__).parent / "mpi_job.py"
PATIENCE = 150.0

pytestmark = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
FLAVOURS = {flavour.name: flavour for flavour in mpi.FLAVOURS}
BOTH = pytest.mark.parametrize("flavour", few(FLAVOURS, ["mpich"]))


@cache
def installed(flavour: str) -> mpi.Mpi | str:
    return mpi.find(FLAVOURS[flavour], None, mpi.search_path(), mpi.own_prefix())


def variables(found: mpi.Mpi, **more: str) -> dict[str, str]:
    """An environment in which nothing but MPI says who a process is, and where to meet."""
    told = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "AIODIST_STORE", "AIODIST_SECRET")
    kept = {name: value for name, value in os.environ.items() if name not in told}
    return {**kept, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", **found.env, **more}


def run(flavour: str, program: str, size: int = 4, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program of mpi_job.py on `size` ranks; 0: without mpirun."""
    return start(flavour, [str(JOB), program], size, **environ)


def start(flavour: str, script: list[str], size: int = 4, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script with its arguments on `size` ranks; 0: without mpirun."""
    found = installed(flavour)
    if isinstance(found, str):
        pytest.skip(f"{flavour}: {found}")
    crowded = ["--oversubscribe"] if flavour == "openmpi" else []
    launcher = [found.launcher, *crowded, "-n", str(size)] if size else []
    return run_to_end([*launcher, sys.executable, *script], variables(found, **environ), PATIENCE)


def well(flavour: str, program: str, size: int = 4, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends well on all ranks."""
    ended = run(flavour, program, size, **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Lines of several ranks may come entangled.
    assert ended.stdout.count("<well>") == max(size, 1), ended.stdout + ended.stderr
    return ended


BROKE, OPEN = "a group broke", "it has operations that cannot be taken back (1)"


@pytest.mark.slow(COSTLY)
@BOTH
@pytest.mark.parametrize("size", few([1, 4], [4]))
def test_all_that_a_backend_must_do(flavour: str, size: int) -> None:
    assert well(flavour, "conformance", size).stderr == ""


@pytest.mark.slow(COSTLY)
@BOTH
@pytest.mark.parametrize(
    ("program", "size"),
    few(
        [
            *(("reductions", 4), ("overflows", 4), ("pieces", 4), ("orders", 4), ("late", 4)),
            ("messages", 2),
        ],
        [("messages", 2)],
    ),
)
def test_it_does(flavour: str, program: str, size: int) -> None:
    assert well(flavour, program, size).stderr == ""


@pytest.mark.slow(MORE)
@BOTH
def test_process_of_its_own_is_a_world_of_one(flavour: str) -> None:
    assert well(flavour, "conformance", 0).stderr == ""


@pytest.mark.slow(COSTLY)
@BOTH
@pytest.mark.parametrize("program", few(["serialized", "uninitialised"], ["serialized"]))
def test_mpi_that_the_user_has_set_up_is_used_as_it_is(flavour: str, program: str) -> None:
    assert well(flavour, program, 3).stderr == ""


@pytest.mark.slow(COSTLY)
@BOTH
@pytest.mark.parametrize(
    ("program", "why"),
    few(
        [
            ("funneled", "thread level 'funneled'"),
            ("finalised", "MPI has been finalised"),
            ("contradiction", "world_size=9, but this is rank 1 of 2 in MPI"),
        ],
        [("contradiction", "world_size=9, but this is rank 1 of 2 in MPI")],
    ),
)
def test_it_is_refused_on_every_rank(flavour: str, program: str, why: str) -> None:
    said = well(flavour, program, 2).stdout
    assert said.count("refused: ") == 2
    assert why in said


@pytest.mark.slow(COSTLY)
@BOTH
def test_job_ends_at_once_where_one_rank_cannot_go_on(flavour: str) -> None:
    ended = run(flavour, "one_is_wrong", 2)
    assert ended.returncode != 0
    assert "UsageError: rank=0, but this is rank 1 of 2 in MPI" in ended.stderr
    assert "RendezvousError: rank 1 cannot go on: rank=0, but this is rank 1 of 2 in MPI" in ended.stderr


@pytest.mark.slow(MORE)
@BOTH
def test_job_ends_in_time_where_one_rank_cannot_go_on_and_mpi_is_not_asked_where_to_meet(
    flavour: str,
) -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ended = run(flavour, "one_is_wrong_elsewhere", 2, **environ)
    assert ended.returncode != 0
    assert "UsageError: rank=0, but this is rank 1 of 2 in MPI" in ended.stderr
    assert re.search("RendezvousTimeout: .*rank 1", ended.stderr), ended.stderr


@pytest.mark.slow(MORE)
@BOTH
def test_meeting_that_one_rank_was_refused_may_be_tried_again(flavour: str) -> None:
    said = well(flavour, "all_try_again", 2).stdout
    assert "refused: rank=0, but this is rank 1 of 2 in MPI" in said
    assert "refused: rank 1 cannot go on: rank=0, but" in said


@pytest.mark.slow(MORE)
@BOTH
def test_who_gave_up_meeting_the_others_is_told_so_when_it_tries_again(flavour: str) -> None:
    said = well(flavour, "gives_up", 2).stdout
    assert "late: not all 2 processes of the MPI job came within 0.5 s" in said
    assert "refused: this process an earlier meeting of this process with the MPI job did not finish" in said


@BOTH
def test_more_than_one_process_without_mpirun_is_refused(flavour: str) -> None:
    ended = run(flavour, "conformance", 0, RANK="0", WORLD_SIZE="3")
    assert ended.returncode == 1
    assert "UsageError: WORLD_SIZE=3, but MPI has this process alone" in ended.stderr


@pytest.mark.slow("thousands of groups")
@BOTH
def test_more_groups_than_there_is_room_for(flavour: str) -> None:
    said = well(flavour, "too_many_groups", 2).stdout
    assert said.count("Close groups that are done") == 2
    limit = {
        "openmpi": "more than 4096 are open",
        "mpich": "the MPI library makes no communicator for another group: Too many communicators",
    }
    assert said.count(limit[flavour]) == 2


@pytest.mark.slow(COSTLY)
@BOTH
def test_parts_that_do_not_fit_are_no_success(flavour: str) -> None:
    assert OPEN not in well(flavour, "splits", 3).stderr


@pytest.mark.slow(MORE)
@BOTH
def test_what_all_have_begun_ends_when_the_group_is_aborted(flavour: str) -> None:
    said = well(flavour, "aborted", 3).stderr
    assert BROKE in said  # from rank 0, at least: others may have closed before they heard
    assert OPEN not in said


@pytest.mark.slow(COSTLY)
def test_library_of_another_mpi_than_mpirun_is_refused() -> None:
    other = installed("openmpi")
    if isinstance(other, str):
        pytest.skip(other)
    ended = run("mpich", "conformance", 2, **other.env)
    assert ended.returncode != 0
    assert (
        "UsageError: mpirun has started 2 processes, but the MPI library has this one alone" in ended.stderr
    )


@pytest.mark.slow(COSTLY)
@BOTH
def test_process_ends_though_operations_are_open(flavour: str) -> None:
    assert well(flavour, "open_but_all_end", 3).stderr.count(OPEN) == 1


@pytest.mark.slow(MORE)
@BOTH
def test_job_ends_though_operations_are_open_and_a_rank_hangs(flavour: str) -> None:
    ended = run(flavour, "open_and_one_hangs", 3)
    assert ended.returncode != 0
    assert OPEN in ended.stderr


@pytest.mark.slow(COSTLY)
@BOTH
def test_job_ends_though_a_rank_hangs(flavour: str) -> None:
    ended = run(flavour, "one_hangs", 3)
    assert ended.returncode != 0
    assert (
        "CollectiveTimeout: the operation did not complete within 1 s: rank 1 did not answer" in ended.stderr
    )
    assert BROKE in ended.stderr


@pytest.mark.slow(MORE)
@BOTH
def test_the_digits_example_trains(flavour: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "train_digits.py"
    ended = start(flavour, [str(example), "--backend", "mpi", "--epochs", "10"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"held-out accuracy: (0\.\d+)", ended.stdout)
    assert found is not None, ended.stdout
    assert float(found[1]) > 0.9
