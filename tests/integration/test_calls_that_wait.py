"""Calls between ranks that wait for each other are told while they wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import few

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

JOB = """
import sys
import aiodist as dist

async def main():
    async with dist.init_process_group() as pg:
        @pg.handler(limit=1 if pg.rank < int(sys.argv[1]) else 8)
        async def back(depth):
            return await pg.call(1 - pg.rank, back, depth - 1) if depth else 0

        await pg.barrier()
        await pg.call(1 - pg.rank, back, 2)

dist.run(main())
"""


SLOW = """
import asyncio
import aiodist as dist

async def main():
    async with dist.init_process_group() as pg:
        @pg.handler(limit=1)
        async def slow():
            await asyncio.sleep(100)

        await pg.barrier()
        await asyncio.gather(*(pg.call(1 - pg.rank, slow) for _ in range(2)))

dist.run(main())
"""


@pytest.mark.parametrize("limited", few([2, 1], [1]))
def test_a_circle_of_calls_is_told_while_it_stands(tmp_path: Path, limited: int) -> None:
    told = boxes(tmp_path, JOB, "wait for each other's answers", str(limited))
    full = ", which runs there as often as its limit allows"
    assert "ranks 0 and 1 wait for each other's answers" in told
    assert f"'back' of rank 1 waits for 'back' of rank 0{full}" in told
    assert f"'back' of rank 0 waits for 'back' of rank 1{full if limited == 2 else ''}\n" in told
    assert "job.py:9 in back" in told


def test_handlers_that_are_only_slow_are_no_circle(tmp_path: Path) -> None:
    told = boxes(tmp_path, SLOW, "waits for 'slow'")
    assert "wait for each other" not in told and "stands still" not in told
    assert "waits for 'slow' of rank" in told
    assert "job.py:9 in slow" in told


def boxes(tmp_path: Path, job: str, last: str, *args: str) -> str:
    """The words of a job until the end of the first box with certain ones. One may come before: a rank may be
    seen before the other has asked."""
    (tmp_path / "job.py").write_text(job)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=2", "--standalone", "job.py", *args]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "AIODIST_STALL_AFTER": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "→" in line and last in "".join(said):
                break
        process.terminate()
        process.communicate()
    return "".join(said)
