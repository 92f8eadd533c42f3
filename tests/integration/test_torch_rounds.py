"""torch's groups, destroyed and made again at once: ranks meet in the round that is theirs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.levels import COSTLY, MORE
from tests.ports import free_port
from tests.processes import run_to_end

JOB = str(Path(__file__).with_name("torch_rounds_job.py"))
AIODIST = [sys.executable, "-m", "aiodist", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
MANY = pytest.mark.slow("hundreds of rounds")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


def run(launcher: list[str], *words: object, size: int = 3) -> str:
    """Run the job to its end; every rank has been in every round. → what was printed."""
    command = [*launcher, f"--nproc-per-node={size}", JOB, *map(str, words)]
    ended = run_to_end(command, os.environ, 500)
    said = Counter(line.rpartition("│ ")[2] for line in ended.stdout.splitlines())
    assert ended.returncode == 0 and said["done"] == size, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        pytest.param(AIODIST, ["aiodist", 30], id="aiodist"),
        pytest.param([*AIODIST, "--torch"], ["gloo", 15, "barrier", "abort"], id="gloo aborted"),
        pytest.param(AIODIST, ["aiodist", 200], id="aiodist 200", marks=MANY),
        pytest.param(AIODIST, ["aiodist", 200, "barrier"], id="aiodist 200 barrier", marks=MANY),
        pytest.param([*AIODIST, "--torch"], ["gloo", 200], id="gloo 200", marks=MANY),
        pytest.param(
            [*AIODIST, "--torch"],
            ["gloo", 200, "barrier"],
            id="gloo 200 barrier",
            marks=MANY,
        ),
        pytest.param(TORCHRUN, ["aiodist", 50], id="torchrun", marks=MANY),
        pytest.param(AIODIST, ["aiodist", 20, "abort"], id="aborted", marks=pytest.mark.slow(MORE)),
    ],
)
def test_every_rank_is_in_every_round(launcher: list[str], words: list[object]) -> None:
    """With subgroups; some ranks are still in a round when others begin the next. Nothing else is printed."""
    said = run(launcher, *words)
    assert "TCPStore" not in said  # no word of torch's store, of a connection that broke


@pytest.mark.slow(MORE)
def test_rounds_in_a_file(tmp_path: Path) -> None:
    """torch's store is a file, which may be there from a round before."""
    run(AIODIST, "aiodist", 10, (tmp_path / "store").as_uri())


@pytest.mark.slow(MORE)
def test_a_job_that_is_started_again_after_a_death() -> None:
    run([*AIODIST, "--max-restarts=1"], "aiodist", 8, "die")


@pytest.mark.slow(COSTLY)
def test_ranks_that_are_started_by_hand() -> None:
    """Rank 0's store stays at MASTER_PORT after a round. It makes way for a group of aiodist's own there, and
    a group of gloo's does not see its keys."""
    environ = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, JOB, "aiodist", "6", "after"]
    ranks = [
        Popen(command, env=environ | {"RANK": str(rank)}, stdout=PIPE, stderr=PIPE, text=True)
        for rank in range(2)
    ]
    try:
        ended = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [out for out, _ in ended] == ["done\n"] * 2, ended
