"""A job of two real ranks, for commands that look at it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.observe.host import read_jobs
from tests.waiting import until

PROGRAM = """
import asyncio
import numpy as np
import aiodist as dist

async def waits_for_ever(event):
    await event.wait()

async def main():
    pg = await dist.init_process_group()
    x = np.full(100, pg.rank + 1.0, np.float32)
    side = asyncio.create_task(waits_for_ever(asyncio.Event()), name="on the side")
    for _ in range(30):
        await pg.all_reduce(x)
    for number in range(3):
        if pg.rank == 0:
            await pg.send(x, 1)
        else:
            await pg.recv(x, 0)
    if pg.rank == 0:
        print("ready", flush=True)
    while True:
        await pg.all_reduce(x)
        await asyncio.sleep(1.0)  # what was done at the beginning is to stay in its record

asyncio.run(main())
"""


def written(name: str) -> bool:
    """Whether both ranks have written down all that they did at first."""
    seen = [rank for one in read_jobs() if one.name == name for rank in one.ranks]
    return len(seen) == 2 and all(rank.recording.vitals.issued >= 33 for rank in seen)


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the script of a job of two ranks that goes on for as long as it is needed."""
    if sys.platform != "linux":
        pytest.skip("recorders have files on Linux")
    # Of its own for each use of this fixture: a process of the tests may have two such jobs.
    script = tmp_path_factory.mktemp("job") / f"observed{secrets.token_hex(4)}.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=2", "--standalone", str(script)]
    environment = os.environ | {"XDG_STATE_HOME": str(script.parent), "AIODIST_STALL_AFTER": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as started:
        assert started.stdout is not None
        try:
            assert any("ready" in line for line in started.stdout), "the job ended before it was ready"
            until(lambda: written(script.name), "what both ranks did, in their records", started)
            yield script.name
        finally:
            started.terminate()
            started.stdout.read()
