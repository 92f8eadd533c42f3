"""Frameworks train on the backend "aiodist": two ranks find bit by bit what they find on gloo.

The frameworks are not among this project's dependencies. Where one is not installed, its tests are skipped.
All run after `pip install lightning accelerate transformers "ray[train]"`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.levels import MORE
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "frameworks"
PATIENCE = 140.0
TOLD = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("AIODIST_STORE", "AIODIST_RANK", "AIODIST_TORCH"),
)
NEEDS = {"lightning": ["lightning"], "accelerate": ["accelerate"], "trainer": ["transformers", "accelerate"]}

PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2"]
IN_PLACE_OF_GLOO = [*RUN, "--torch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"),
    *("--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no"),
]

ALONE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""For all: one thread, so that sums have one order; and nobody asks, or tells, the network."""

OURS = ["--backend", "aiodist"]
ON_CPU = {"ACCELERATE_USE_CPU": "1"}
FOR_ALL = {"AIODIST_TORCH": "1"}  # what `aiodist run --torch` sets

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]

Found = list[dict[str, Any]]
"""What each rank has left."""


class Row(NamedTuple):
    """A job, how it is started, and with which words and variables."""

    job: str
    launcher: list[str]
    words: Sequence[str] = ()
    environ: Mapping[str, str] = MappingProxyType({})


def row(name: str, job: str, *how: Any, slow: str = "") -> Any:
    """A row of a parametrisation, which is skipped without its framework."""
    marks = [
        pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")
        for module in NEEDS.get(job, [job])
    ]
    return pytest.param(Row(job, *how), id=name, marks=[*marks, pytest.mark.slow(slow)] if slow else marks)


def run(asked: Row, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    kept = {name: value for name, value in os.environ.items() if name not in TOLD}
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(ROOT)) if path]
    environ = {**kept, "PYTHONPATH": os.pathsep.join(paths), **ALONE, **asked.environ}
    command = [*asked.launcher, str(JOBS / f"{asked.job}_job.py"), str(folder), *asked.words]
    return run_to_end(command, environ, PATIENCE)


def trained(asked: Row, folder: Path) -> Found:
    """What the ranks of a job that ends well have found."""
    ended = run(asked, folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


Reference = Callable[[str, bool], Found]


@pytest.fixture(scope="module")
def on_gloo(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Runs a job on gloo itself, once → what its ranks have found."""
    known: dict[tuple[str, bool], Found] = {}

    def find(job: str, sharded: bool) -> Found:
        if (job, sharded) not in known:
            launcher = PYTHON if job == "ray" else RUN
            asked = Row(job, launcher, ["--sharded"] if sharded else [])
            found = trained(asked, tmp_path_factory.mktemp("gloo"))
            assert [(one["backend"], one["group"]) for one in found] == [("gloo", "ProcessGroup")] * 2
            known[job, sharded] = found
        return known[job, sharded]

    return find


ROWS = [
    row("lightning", "lightning", RUN, [*OURS, "--environment"]),
    row("lightning-own-launcher", "lightning", PYTHON, OURS, slow=MORE),
    row("lightning-unchanged", "lightning", IN_PLACE_OF_GLOO, slow=MORE),
    row("lightning-own-launcher-unchanged", "lightning", PYTHON, [], FOR_ALL, slow=MORE),
    row("lightning-sharded", "lightning", RUN, [*OURS, "--environment", "--sharded"], slow=MORE),
    row("lightning-sharded-unchanged", "lightning", IN_PLACE_OF_GLOO, ["--sharded"], slow=MORE),
    row("accelerate", "accelerate", RUN, OURS),
    row("accelerate-launch", "accelerate", ACCELERATE, OURS, ON_CPU, slow=MORE),
    row("accelerate-unchanged", "accelerate", IN_PLACE_OF_GLOO, slow=MORE),
    row("accelerate-launch-unchanged", "accelerate", ACCELERATE, [], {**ON_CPU, **FOR_ALL}, slow=MORE),
    row("trainer", "trainer", RUN, OURS),
    row("trainer-torchrun", "trainer", TORCHRUN, OURS, slow=MORE),
    row("trainer-unchanged", "trainer", IN_PLACE_OF_GLOO, slow=MORE),
    row("ray", "ray", PYTHON, OURS, slow="Ray's own start takes half a minute"),
    row("ray-unchanged", "ray", PYTHON, [], FOR_ALL, slow=MORE),
]


@pytest.mark.parametrize("asked", ROWS)
def test_it_finds_what_it_finds_on_gloo(asked: Row, on_gloo: Reference, tmp_path: Path, port: int) -> None:
    if asked.launcher is ACCELERATE:
        asked = asked._replace(launcher=[*ACCELERATE, "--main_process_port", str(port)])
    found = trained(asked, tmp_path)
    names = ("aiodist", "AiodistProcessGroup") if "--backend" in asked.words else ("gloo", "GlooStandIn")
    assert [(one["backend"], one["group"], one["size"]) for one in found] == [(*names, 2)] * 2
    expected = on_gloo(asked.job, "--sharded" in asked.words)
    for what in ("losses", "averages", "weights"):
        assert [one[what] for one in found] == [one[what] for one in expected], what
    mine, other = found
    assert len(mine["losses"]) >= 18
    assert all(one != two for one, two in zip(mine["losses"], other["losses"], strict=True))
    assert mine["weights"] == other["weights"]
    assert mine["averages"] == other["averages"] and bool(mine["averages"]) == (asked.job != "ray")


KILLED = [
    row("lightning", "lightning", [*RUN, "--on-failure", "continue"], [*OURS, "--environment"]),
    row("lightning-own-launcher", "lightning", PYTHON, OURS, slow=MORE),
    row("accelerate", "accelerate", [*RUN, "--on-failure", "continue"], OURS, slow=MORE),
    row("trainer", "trainer", [*RUN, "--on-failure", "continue"], OURS, slow=MORE),
    row("ray", "ray", PYTHON, OURS, slow=MORE),
]


@pytest.mark.parametrize("asked", KILLED)
def test_who_is_killed_in_the_middle_is_named_in_the_other(asked: Row, tmp_path: Path) -> None:
    ended = run(asked._replace(words=[*asked.words, "--dies"]), tmp_path)
    assert ended.returncode != 0, ended.stdout + ended.stderr
    assert (tmp_path / "died").exists()
    told = (tmp_path / "0.error").read_text()
    assert "PeerLost: lost rank 1: " in told, told
    assert not list(tmp_path.glob("?.json"))
