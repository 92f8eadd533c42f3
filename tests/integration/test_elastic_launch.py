"""`aiodist run` and `dist.join` together: whoever dies, the training goes on, and is right at its end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.launch import jobs
from tests.levels import MORE, few
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.launch.jobs import Job, Start

start = jobs.start
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

# Counts steps that all members have taken together, until somebody finds the file GO; a member that
# joins takes the count of the others. Each says who it is, and the size of every epoch it is in.
TRAIN = """
import asyncio
import numpy as np
import aiodist as dist

async def train():
    pg = await dist.join(timeout=120)
    step, news = np.zeros(1, np.int64), True
    while True:
        try:
            if news:
                await pg.all_reduce(step, op=dist.ReduceOp.MAX)
                tell(f"epoch {pg.epoch} size {pg.size} pid {os.getpid()} count {COUNT}")
                news = False
            ones = np.ones(1000)
            await pg.all_reduce(ones)
            assert (ones == pg.size).all()
            step += 1
            ready = np.array([os.path.exists(os.environ["GO"])])
            if step[0] % 10 == 0:
                await pg.all_reduce(ready, op=dist.ReduceOp.MAX)
                if ready[0]:
                    break
                if await pg.pending_joins():
                    pg, news = await pg.rebuild(admit=True, timeout=120), True
            await asyncio.sleep(0.001)
        except dist.GroupBroken:
            pg, news = await pg.rebuild(min_size=1, admit=True, timeout=120), True
    await pg.aclose()
    return int(step[0])

here("start")
print("steps", dist.run(train()), flush=True)
"""


def epoch_of(job: Job, size: int, count: int) -> dict[int, int]:
    """Reads on until so many workers of this job are in an epoch of this size; rank → pid."""
    while True:
        found: dict[int, dict[int, int]] = {}
        for line in job.told:
            if match := re.fullmatch(r"(\d+) epoch (\d+) size (\d+) pid (\d+) count \d+", line):
                rank, epoch, its_size, pid = map(int, match.groups())
                if its_size == size:
                    found.setdefault(epoch, {})[rank] = pid
        for members in found.values():
            if len(members) == count:
                return members
        job.expect(len(job.told) + 1)


def steps(out: str) -> list[int]:
    return [int(number) for number in re.findall(r"steps (\d+)", out)]


@pytest.mark.parametrize("victim", few([0, 2], [2]))
def test_a_killed_worker_comes_back_into_the_group(start: Start, victim: int) -> None:
    job = start(TRAIN, "--max-restarts", "3", nproc=4)
    before = epoch_of(job, 4, 4)
    os.kill(before[victim], signal.SIGKILL)
    epoch_of(job, 3, 3)
    job.told = [line for line in job.told if "size 4" not in line]
    after = epoch_of(job, 4, 4)
    assert {rank for rank in after if after[rank] != before[rank]} == {victim}
    job.go.touch()
    code, out, err = job.end()
    assert code == 0, err
    assert len(steps(out)) == 4 and len(set(steps(out))) == 1
    said = f"rank {victim} failed: killed by SIGKILL; restart 1 of 3, into the running group\n"
    assert said in err
    assert err.endswith("aiodist run: the job ended well after 1 restart\n")


@pytest.mark.slow(MORE)
def test_a_worker_that_fails_after_an_epoch_of_its_own_comes_back_too(start: Start) -> None:
    """Rank 1 was alone for an epoch, and has left that well. So has it not left the job: it fails later."""
    body = TRAIN.replace(
        "async def train():\n    pg = await dist.join(timeout=120)\n",
        "async def train():\n    async with await dist.join(timeout=120) as first:\n"
        "        return await go_on(first)\n\nasync def go_on(pg):\n",
    ).replace(
        "            step += 1\n",
        "            step += 1\n"
        "            if RANK == 1 and not COUNT and os.path.exists(os.environ['GO'] + '1'):\n"
        "                raise RuntimeError('of its own')\n",
    )
    job = start(body, "--max-restarts", "3", nproc=2)
    os.kill(epoch_of(job, 2, 2)[0], signal.SIGKILL)
    epoch_of(job, 1, 1)
    job.told = [line for line in job.told if "size 2" not in line]
    first = epoch_of(job, 2, 2)
    Path(f"{job.go}1").touch()
    job.told = [line for line in job.told if "size 2" not in line]
    second = epoch_of(job, 2, 2)
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)
    job.go.touch()
    code, out, err = job.end()
    assert code == 0, err
    assert len(steps(out)) == 2 and len(set(steps(out))) == 1
    assert "rank 1 failed: exit code 1; restart 2 of 3, into the running group\n" in err


@pytest.mark.slow(MORE)
def test_the_survivors_go_on_alone(start: Start) -> None:
    job = start(TRAIN, "--on-failure", "continue", nproc=3)
    members = epoch_of(job, 3, 3)
    os.kill(members[0], signal.SIGKILL)
    members = epoch_of(job, 2, 2)
    os.kill(members[1], signal.SIGKILL)
    epoch_of(job, 1, 1)
    job.go.touch()
    code, out, err = job.end()
    assert code == 0, err
    assert len(steps(out)) == 1
    [last] = err.splitlines()[-1:]
    assert last.startswith("aiodist run: the job ended well without rank 0 (killed by SIGKILL after ")
    assert ", rank 1 (killed by SIGKILL after " in last


@pytest.mark.slow(MORE)
def test_a_node_joins_and_is_lost_again(start: Start) -> None:
    port = free_port()
    options = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}")
    conf = ("--rdzv-conf", "last_call_timeout=0")
    first = start(TRAIN, *options, *conf, nproc=2)
    epoch_of(first, 2, 2)
    second = start(TRAIN, *options, *conf, nproc=1)
    assert list(epoch_of(second, 3, 1)) == [2]
    epoch_of(first, 3, 2)
    first.told = [line for line in first.told if "size 2" not in line]
    second.process.kill()
    epoch_of(first, 2, 2)
    first.until_said("node 1 is lost; the job goes on with 1")
    first.go.touch()
    code, out, err = first.end()
    assert code == 0, err
    assert len(steps(out)) == 2 and len(set(steps(out))) == 1
    assert err.endswith("aiodist run: the job ended well without node 1 (lost)\n")


@pytest.mark.slow(MORE)
def test_who_dies_before_the_group_exists_makes_all_begin_again(start: Start) -> None:
    """Rank 1 has claimed its rank, and rank 2 has not come yet: there is nothing to come back to."""
    job = start(
        """
        import asyncio
        from aiodist.rendezvous.client import TcpStore

        async def die():
            host, _, port = os.environ["AIODIST_STORE"].rpartition(":")
            job, secret = os.environ["AIODIST_JOB"], os.environ["AIODIST_SECRET"].encode()
            store = await TcpStore.connect(host, int(port), job, secret, 60)
            joining = asyncio.create_task(dist.join(timeout=120))
            await store.get("aiodist/world/aiodist/rank/1")
            os.kill(os.getpid(), signal.SIGKILL)

        async def main():
            if RANK == 1 and COUNT == 0:
                await die()
            async with await dist.join(timeout=120) as pg:
                tell(f"epoch {pg.epoch} size {pg.size}")

        import aiodist as dist
        here("start")
        if RANK == 2 and COUNT == 0:
            wait()
        dist.run(main())
        """,
        *("--max-restarts", "1"),
        nproc=3,
    )
    code, _, err = job.end()
    assert code == 0, err
    assert "rank 1 failed (killed by SIGKILL); restart 1 of 1: all workers begin again, 3\n" in err
    told = sorted(line for line in job.told if "epoch" in line)
    assert told == [f"{rank} epoch 0 size 3" for rank in range(3)]


@pytest.mark.slow(MORE)
def test_who_comes_back_too_late_is_not_missed(start: Start) -> None:
    """Rank 1 is killed; while it is started again, the others reach the end: it does not wait for them."""
    late = """
if RANK == 1 and COUNT:
    tell("again")
    while not os.path.exists(os.environ["GO"] + "2"): time.sleep(0.01)
"""
    body = TRAIN.replace('here("start")', f'here("start"){late}')
    job = start(body, "--max-restarts", "1", nproc=3)
    members = epoch_of(job, 3, 3)
    os.kill(members[1], signal.SIGKILL)
    epoch_of(job, 2, 2)
    while "1 again" not in job.told:
        job.expect(len(job.told) + 1)
    job.go.touch()
    for rank in (0, 2):
        while Path(f"/proc/{members[rank]}").exists():
            time.sleep(0.01)
    Path(f"{job.go}2").touch()
    code, out, err = job.end()
    assert code == 0, err
    assert len(steps(out)) == 2
    assert re.search(r"RendezvousError: the job has ended: ranks? [02].* finished without this process", err)
    assert "rank 1 failed: exit code 1; all others have ended\n" in err
