"""What torch builds on its groups, on ours: functional collectives, DTensor, FSDP, checkpoints, hooks."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.levels import COSTLY, MORE, few
from tests.processes import run_to_end

JOB = Path(__file__).parent / "torch_parallel_job.py"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]

# One job has many checks: torch's imports take longest.
SOME = (
    "functional_calls functional_several objects gradients_of_calls batches_of_messages "
    "meshes dtensors pipelines fully_sharded replicated uneven_inputs hooks averaged_models refused"
)
REST = (
    "functional_ops functional_messages functional_gradients calls_in_place other_shapes "
    "gradients_of_scattered_sums dtensor_mathematics tensor_parallel hybrid_sharded fully_sharded_1 "
    "other_divisors sharded_optimisers ddp_options power_hooks compiled_calls"
)
KEPT = "checkpoints checkpoint_by_process"  # starts processes of its own
JOBS = {  # name → number of ranks, checks
    "some": (2, SOME),
    "rest": (2, REST),
    "checkpoints": (2, KEPT),
    "some of 4": (4, SOME),
    "rest of 4": (4, REST),
    "checkpoints of 4": (4, KEPT),
}


def run(folder: Path, size: int, checks: str) -> None:
    """Run checks by so many ranks, all of which shall find the same on both backends."""
    job = [str(JOB), str(folder), *checks.split()]
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(size), *job]
    ended = run_to_end(command, {**os.environ, "OMP_NUM_THREADS": "1"}, 250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("same") == size, ended.stdout + ended.stderr


@pytest.mark.parametrize("job", few(JOBS, ["some"]))
def test_what_torch_builds_on_groups_is_what_it_builds_on_gloo(job: str, tmp_path: Path) -> None:
    run(tmp_path, *JOBS[job])


@pytest.mark.slow(COSTLY)
def test_each_check_is_run() -> None:
    defined = re.findall(r"^@(?:check|exact|alone)\ndef (\w+)", JOB.read_text(), re.MULTILINE)
    elsewhere = {"checkpoint_kept", "checkpoint_found", "compiled_by_inductor"}
    assert len(defined) > 30
    assert {*SOME.split(), *REST.split(), *KEPT.split(), *elsewhere} == set(defined)


@pytest.mark.slow(MORE)
@pytest.mark.parametrize(("size", "next_size"), [(4, 2), (2, 4)])
def test_a_checkpoint_is_loaded_by_another_number_of_ranks(size: int, next_size: int, tmp_path: Path) -> None:
    run(tmp_path, size, "checkpoint_kept")
    run(tmp_path, next_size, "checkpoint_found")


@pytest.mark.slow("torch's compiler takes half a minute")
def test_collectives_that_torch_compiles_with_its_own_compiler(tmp_path: Path) -> None:
    run(tmp_path, 2, "compiled_by_inductor")
