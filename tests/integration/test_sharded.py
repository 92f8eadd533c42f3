"""ShardedOptimizer under the launcher: a killed worker comes back and gets its share; a new job goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import few

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

JOB = """
import asyncio, os, signal, sys
import numpy as np
import aiodist as dist

def momentum(values, gradient, state):
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity += gradient - velocity / 4
    values -= velocity / 8

async def main(copies, until):
    async with dist.join() as pg, dist.Checkpoints(pg, "saved") as checkpoints:
        async def restore(optimizer):
            await checkpoints.load(optimizer=optimizer)

        values, me = np.full(50, pg.rank + 1.0), pg.rank
        optimizer = await dist.ShardedOptimizer(
            pg, [values], momentum, elastic=True, redundancy=copies, restore=restore
        )
        first = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0
        came_with = optimizer.steps
        while optimizer.steps < until or optimizer.pg.size < 3 or optimizer.pg.epoch < 2:
            if first and os.environ["RANK"] == "1" and optimizer.steps == 12:
                os.kill(os.getpid(), signal.SIGKILL)
            counted = await optimizer.step([np.arange(50.0) + optimizer.steps])
            if counted and optimizer.steps % 5 == 0:
                await checkpoints.save(optimizer.steps, optimizer=optimizer)
            await asyncio.sleep(0.01)
        print(f"END {came_with} {optimizer.steps} {values.tobytes().hex()}", flush=True)

dist.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def run(tmp_path: Path, copies: int, until: int) -> list[tuple[int, int, str]]:
    """What each of three workers ends with: its first step, the last one, the values."""
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", "--max-restarts=3", "job.py"]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    ended = subprocess.run(
        [*command, str(copies), str(until)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = re.findall(r"END (\d+) (\d+) (\w+)", ended.stdout)
    assert len(found) == 3
    return [(int(first), int(last), values) for first, last, values in found]


def alone(steps: int) -> str:
    """The values after some steps, worked out here."""
    code = JOB[JOB.index("def momentum") : JOB.index("async def main")]
    scope: dict[str, object] = {}
    exec(
        f"import numpy as np\n{code}\nvalues, state = np.ones(50), {{}}\n"
        f"for step in range({steps}): momentum(values, np.arange(50.0) + step, state)\n"
        "found = values.tobytes().hex()",
        scope,
    )
    return str(scope["found"])


@pytest.mark.timeout(280)
@pytest.mark.parametrize("copies", few([1, 0], [0]))
def test_a_worker_that_comes_back_has_its_share(tmp_path: Path, copies: int) -> None:
    lines = run(tmp_path, copies, 30)
    assert {line[1:] for line in lines} == {(lines[0][1], alone(lines[0][1]))}, "alike, as without a death"
    first = sorted(line[0] for line in lines)
    # with a copy nothing is done again; without, all go on from the checkpoint
    assert first[:2] == [0, 0] and first[2] >= (12 if copies else 5)


@pytest.mark.slow("an example, with torch")
@pytest.mark.timeout(280)
def test_the_example_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    example = Path(__file__).parents[2] / "examples" / "train_sharded.py"
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    said = []
    for workers, steps in ((2, 100), (3, 150)):
        words = ["-m", "aiodist", "run", f"--nproc-per-node={workers}", str(example), f"--steps={steps}"]
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=130,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout)
    assert re.search(r"step 100: 0\.[89]\d+ of held-out digits, 2 ranks", said[0])
    assert "going on from step 100, which 2 ranks saved" in said[1]
    assert re.search(r"step 150: 0\.[89]\d+ of held-out digits, 3 ranks", said[1])
