"""What a failing job prints: a line for each rank that only noticed, and a headline that names the cause."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import COSTLY, few

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

JOB = """
import asyncio, os, signal, sys, time
import numpy as np
import aiodist as dist

async def odd_one(pg, x, how):
    if how == "raises":
        raise ValueError("bad batch")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleeps":
        await asyncio.sleep(1000)  # late
    if how == "blocks":
        time.sleep(1000)  # late
    if how == "other":
        await pg.broadcast(x, 0)
    if how == "shorter":
        await pg.all_reduce(x[:50])

async def main():
    how = sys.argv[1]
    async with dist.init_process_group() as pg:
        x = np.full(100, pg.rank + 1.0, np.float32)
        await pg.all_reduce(x)
        if how in ("sleeps", "blocks"):
            pg.timeout = 3
        if how == "waits":
            print("ready", flush=True)
        if how == "all raise":
            raise ValueError("bad batch")
        if pg.rank == 2:
            await odd_one(pg, x, how)
        if how == "roots":
            await pg.broadcast(x, src=pg.rank)  # each is a root, and waits for nobody
            return
        await pg.all_reduce(x)  # here
        while how == "computes":
            print("ready", flush=True)
            time.sleep(1000)
        while how == "waits":
            await pg.barrier()  # there
            await asyncio.sleep(1000 * (pg.rank == 2))

asyncio.run(main())
"""


def start(tmp_path: Path, how: str) -> tuple[subprocess.Popen[str], Path]:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=4", "--standalone", "job.py", how]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    return process, script


HEADLINES = {
    "sleeps": ("rank 2 kept the others waiting", "# late"),
    "blocks": ("rank 2 kept the others waiting", "# late"),
    "raises": ("rank 2 failed first", "raise ValueError"),
    "killed": ("rank 2 failed first", ""),
    "other": ("rank 2 failed first", "broadcast"),
    "shorter": ("rank 2 failed first", "x[:50]"),
}


@pytest.mark.parametrize("how", few(HEADLINES, ["other"]))
@pytest.mark.timeout(150)
def test_a_headline_and_one_line_for_each_other_rank(how: str, tmp_path: Path) -> None:
    process, _ = start(tmp_path, how)
    _, said = process.communicate(timeout=120)
    headline, source = HEADLINES[how]
    box = said[said.index("╭") :]
    assert f"aiodist run: {headline}" in box.splitlines()[0]
    number = next((n for n, line in enumerate(JOB.splitlines(), 1) if source and source in line), 0)
    if how in ("sleeps", "blocks"):
        late = [n for n, line in enumerate(JOB.splitlines(), 1) if "# late" in line]
        assert any(f"job.py:{n} in odd_one" in box for n in late)
    elif source:
        assert f'job.py", line {number}, in odd_one' in box
    here = next(n for n, line in enumerate(JOB.splitlines(), 1) if "# here" in line)
    outside = said[: said.index("╭")].splitlines()
    for rank in (0, 1, 3):
        shown = rf"\S*:({rank}|ranks (\d, )*{rank}(, \d)*|ranks 0–3)│ "
        lines = [line for line in outside if re.match(shown, line)]
        assert len(lines) == 1 and f"aiodist: job.py:{here} in main: " in lines[0]
    assert "asyncio/runners.py" not in said and "aiodist/group" not in said
    assert process.returncode == (137 if how == "killed" else 1)


@pytest.mark.parametrize("how", few(["waits", "computes"], ["computes"]))
@pytest.mark.timeout(150)
def test_ctrl_c_says_where_each_rank_was(how: str, tmp_path: Path) -> None:
    process, _ = start(tmp_path, how)
    assert process.stdout is not None
    for _ in range(4):
        assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    if how == "waits":
        assert re.search(r"^  ranks? [\d, and]+ at job.py:\d+ in main: await ", said, re.M)
    else:
        assert re.search(r"^  ranks 0, 1, 2 and 3 at job.py:\d+ in main: time.sleep\(1000\)$", said, re.M)


@pytest.mark.timeout(150)
def test_the_same_error_of_all_ranks_is_shown_once(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "all raise")
    _, said = process.communicate(timeout=120)
    outside = said[: said.index("╭")].splitlines()
    errors = [line for line in outside if "ValueError: bad batch" in line]
    assert len(errors) == 1
    assert ":ranks 0–3│ " in errors[0]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.timeout(150)
def test_roots_that_disagree_in_the_last_operation_are_told_at_the_end(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_TRANSPORT", transport)
    process, _ = start(tmp_path, "roots")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "CollectiveMismatch: ranks disagree: rank " in said and ": broadcast(float32[100], src=" in said
