"""What a process does, for the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.launch.doing import MOST, doing
from tests.levels import COSTLY
from tests.ports import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

PROGRAM = """
import asyncio, sys
import aiodist as dist

def deep(number):
    if number:
        return deep(number - 1)
    print("ready", flush=True)
    sys.stdin.read()

async def main():
    async with dist.init_process_group(world_size=1):
        deep(40)

asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
def test_its_stack_cut_where_it_is_long() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = doing(process.pid)
        process.communicate()
    assert any("in deep" in line for line in lines)
    assert len(lines) == MOST + 1 and "lines more" in lines[-1]


def test_a_process_that_records_nothing() -> None:
    assert doing(os.getppid()) == ()


LATE = """
import asyncio, os
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    if pg.rank == 1:
        await asyncio.sleep(60)  # late
    await pg.all_reduce(np.ones(3), timeout=1.0)

asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
def test_a_rank_of_another_node_that_others_waited_for(tmp_path: Path) -> None:
    """Nobody of its own node has failed when the job ends."""
    program = tmp_path / "late_job.py"
    program.write_text(LATE)
    run = [sys.executable, "-m", "aiodist", "run", "--nnodes=2", "--nproc-per-node=1"]
    run += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    agents = [
        subprocess.Popen(
            [*run, f"--node-rank={node}", str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    words = [agent.communicate(timeout=100)[0] for agent in agents]
    line = LATE.splitlines().index("        await asyncio.sleep(60)  # late") + 1
    assert any(f"late_job.py:{line} in main" in told for told in words), words
