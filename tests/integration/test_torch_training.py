"""A training script of torch's, as users write it: on aiodist it gives what it gives on gloo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.levels import MORE
from tests.processes import run_to_end

JOB = Path(__file__).parent / "torch_training_job.py"
NUMBER = r"-?0x[01]\.[0-9a-f]+p[+-]\d+"
SAID = "where a program asks torch for gloo, its groups are aiodist's"
MIXED = ("--mixed",)
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


class Trained(NamedTuple):
    """What a run of the job has printed.

    Attributes:
        steps: losses and norms, as bits, by what, rank, epoch and batch.
        digests: of each rank's parameters and buffers.
        metrics: what all ranks agree on, an epoch each.
        parameters: of rank 0.
        groups: names and classes of the default groups.
        errors: what came on stderr.
    """

    steps: dict[tuple[str, int, int, int], str]
    digests: dict[int, str]
    metrics: list[str]
    parameters: list[float]
    groups: set[str]
    errors: str


def train(tmp_path: Path, backend: str, size: int, *options: str, **more: object) -> Trained:
    """Run the job to its end, under `aiodist run` or another launcher."""
    launcher = more.get("launcher", ("aiodist", "run", "--nproc-per-node", str(size)))
    assert isinstance(launcher, tuple)
    job = [str(JOB), "--backend", backend, "--checkpoint", str(more.get("checkpoint", tmp_path / backend))]
    ended = run_to_end(
        [sys.executable, "-m", *launcher, *job, *options], {**os.environ, "OMP_NUM_THREADS": "1"}, 120
    )
    return read(ended, size)


def read(ended: subprocess.CompletedProcess[str], size: int) -> Trained:
    """Take a run's output apart; it has to be whole."""
    out, everything = ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0, everything
    assert out.count("ended") == size, everything
    steps = {
        (what, int(rank), int(epoch), int(batch)): bits
        for what, rank, epoch, batch, bits in re.findall(rf"(loss|norm) (\d+) (\d+) (\d+) ({NUMBER})", out)
    }
    digests = {int(rank): found for rank, found in re.findall(r"digest (\d+) ([0-9a-f]{64})", out)}
    parameters = re.search(rf"parameters ((?:{NUMBER} ?)+)", out)
    return Trained(
        steps,
        digests,
        re.findall(rf"metrics (.*{NUMBER})", out),
        [] if parameters is None else [float.fromhex(one) for one in parameters[1].split()],
        set(re.findall(r"group (\w+ \w+?)(?=group|$)", out, re.MULTILINE)),
        ended.stderr,
    )


def check_whole(trained: Trained, size: int, first: int = 0) -> None:
    """All epochs from the first are there, of all ranks, and these end with the same parameters."""
    batches = 96 // size // 6
    epochs = range(first, 3)
    losses = {
        ("loss", rank, epoch, batch) for rank in range(size) for epoch in epochs for batch in range(batches)
    }
    assert {key for key in trained.steps if key[0] == "loss"} == losses
    assert len(trained.metrics) == len(epochs)
    assert sorted(trained.digests) == list(range(size))
    assert len(set(trained.digests.values())) == 1
    assert len(trained.parameters) > 1000


def check_same(one: Trained, other: Trained) -> None:
    """Both are the same, bit by bit."""
    assert one.steps == other.steps
    assert one.metrics == other.metrics
    assert one.parameters == other.parameters
    assert one.digests == other.digests


@pytest.fixture(scope="module")
def on_gloo(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two ranks on torch's gloo, which shows that the script owes nothing to aiodist."""
    trained = train(tmp_path_factory.mktemp("gloo"), "gloo", 2, *MIXED)
    assert trained.groups == {"gloo ProcessGroup"}
    check_whole(trained, 2)
    return trained


@pytest.mark.slow("torch starts in four processes; the wrapper beside gloo's is in the quick run, too")
def test_two_ranks_train_bit_by_bit_as_on_gloo(on_gloo: Trained, tmp_path: Path) -> None:
    ours = train(tmp_path, "aiodist", 2, *MIXED)
    assert ours.groups == {"aiodist AiodistProcessGroup"}
    check_whole(ours, 2)
    check_same(ours, on_gloo)


@pytest.mark.slow(MORE)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--find-unused", "--workers", "spawn"), id="unused_parameters_and_spawned_workers"),
        pytest.param(("--static-graph", "--bucket-view", "--mixed"), id="static_graph_and_bucket_views"),
        pytest.param(("--find-unused", "--bucket-view"), id="unused_parameters_and_bucket_views"),
    ],
)
def test_ways_of_ddp(options: tuple[str, ...], tmp_path: Path) -> None:
    theirs, ours = (train(tmp_path, backend, 2, *options) for backend in ("gloo", "aiodist"))
    check_whole(ours, 2)
    check_same(ours, theirs)


@pytest.mark.slow(MORE)
def test_four_ranks(tmp_path: Path) -> None:
    """A sum of four depends on its order, which is each library's own: so what comes before the first sum is
    the same bit by bit, and the rest is near. All ranks of one run end with the same bits."""
    theirs, ours = (train(tmp_path, backend, 4, *MIXED) for backend in ("gloo", "aiodist"))
    check_whole(ours, 4)
    before = [("loss", rank, 0, batch) for rank in range(4) for batch in range(2)]
    assert [ours.steps[key] for key in before] == [theirs.steps[key] for key in before]
    assert ours.steps.keys() == theirs.steps.keys()
    for key, bits in ours.steps.items():
        assert float.fromhex(bits) == pytest.approx(float.fromhex(theirs.steps[key]), rel=0.02), key
    assert ours.parameters == pytest.approx(theirs.parameters, rel=0.02, abs=0.002)


@pytest.mark.slow(MORE)
def test_a_script_that_says_gloo(on_gloo: Trained, tmp_path: Path) -> None:
    launcher = ("aiodist", "run", "--torch", "--nproc-per-node", "2")
    ours = train(tmp_path, "gloo", 2, *MIXED, launcher=launcher)
    assert ours.groups == {"gloo GlooStandIn"}
    assert ours.errors.count(SAID) == 1
    check_whole(ours, 2)
    check_same(ours, on_gloo)


@pytest.mark.slow(MORE)
def test_under_torchrun(on_gloo: Trained, tmp_path: Path) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = train(tmp_path, "aiodist", 2, *MIXED, launcher=launcher)
    assert ours.groups == {"aiodist AiodistProcessGroup"}
    check_whole(ours, 2)
    check_same(ours, on_gloo)


@pytest.mark.slow(MORE)
def test_training_goes_on_from_a_checkpoint(on_gloo: Trained, tmp_path: Path) -> None:
    """One epoch, a checkpoint, and the rest in a second run: as in one go."""
    begun = train(tmp_path, "aiodist", 2, *MIXED, "--stop-after", "1")
    assert begun.steps == {key: bits for key, bits in on_gloo.steps.items() if key[2] == 0}
    rest = train(tmp_path, "aiodist", 2, *MIXED, "--resume")
    check_whole(rest, 2, first=1)
    assert rest.steps == {key: bits for key, bits in on_gloo.steps.items() if key[2] >= 1}
    assert rest.metrics == on_gloo.metrics[1:]
    assert rest.digests == on_gloo.digests
