"""DiLoCo under the launcher: a worker that is killed comes back, gets the common values, and takes part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

JOB = """
import asyncio, os, signal
import numpy as np
import aiodist as dist

async def main():
    async with dist.join() as pg:
        own, momentum = np.zeros(100, np.float32), np.full(2, pg.rank + 1.0)
        diloco = await dist.DiLoCo(
            pg, [own], sync_every=5, codec="int8", elastic=True, state=[momentum]
        )
        first = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0
        came_with = diloco.steps
        while diloco.steps < 60 or diloco.pg.size < 3 or diloco.pg.epoch < 2 or diloco.steps % 5:
            random = np.random.default_rng([diloco.pg.rank, diloco.steps])
            own += random.standard_normal(100).astype(np.float32)
            if first and os.environ["RANK"] == "1" and diloco.steps == 12:
                os.kill(os.getpid(), signal.SIGKILL)
            await diloco.step()
            await asyncio.sleep(0.01)
        common = diloco._commons[0]
        print(f"END {came_with} {diloco.steps} {momentum[0]:g} {common.digest:x} {own.sum():.6f}", flush=True)

dist.run(main())
"""


@pytest.mark.timeout(150)
def test_a_worker_that_comes_back_has_what_the_others_have(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", "--max-restarts=3", "job.py"]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = re.findall(r"END (\d+) (\d+) (\S+) (\S+) (\S+)", ended.stdout)
    assert len(lines) == 3
    assert len({line[1:] for line in lines}) == 1, "steps, state, digest and values are alike"
    came_with = sorted(int(line[0]) for line in lines)
    assert came_with[:2] == [0, 0] and came_with[2] >= 15 and came_with[2] % 5 == 0
