"""The launcher's answer to the failure of a job's last members: real jobs of `dist.join`."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.launch.test_elastic_nodes import node
from tests.levels import COSTLY, few
from tests.waiting import until

if TYPE_CHECKING:
    from tests.launch.conftest import Job, Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

# Rank 2 has less to do, and leaves in order; ranks 0 and 1 go on in the next epoch. With as many restarts as
# LAST says, all workers do their work.
TWO_GO_ON = """
import asyncio
import aiodist as dist
here(f"{COUNT} up")
async def main():
    async with await dist.join(timeout=60) as pg:
        if COUNT == int(os.environ["LAST"]):
            assert pg.size == 3
            await pg.barrier()
            tell("has done its work")
            return
        await pg.barrier()
        if RANK == 2:
            tell(f"{COUNT} leaves")
            return
        pg = await pg.rebuild()
        tell(f"{COUNT} is one of two")
        while not os.path.exists(f"{os.environ['GO']}{RANK}"):
            await asyncio.sleep(0.01)
        fail()
dist.run(main())
"""
KILLED = "def fail(): os.kill(os.getpid(), signal.SIGKILL)\n"
RAISES = "def fail(): raise ValueError(f'a bug of rank {RANK}')\n"
DONE = [f"{rank} has done its work" for rank in range(3)]


def let_fail(job: Job, rank: int) -> None:
    Path(f"{job.go}{rank}").touch()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("how", few([KILLED, RAISES], [RAISES]), ids=["kill", "raise"])
def test_all_begin_again_where_the_last_members_fail_one_after_the_other(start: Start, how: str) -> None:
    job = start(how + TWO_GO_ON, "--max-restarts", "2", nproc=3, env={"LAST": "2"})
    while sum("is one of two" in line for line in job.told) < 2:
        job.expect(len(job.told) + 1)
    let_fail(job, 0)
    job.until_said("restart 1 of 2, into the running group")
    let_fail(job, 1)  # while rank 0 starts: no member has admitted it
    code, _, err = job.end()
    assert code == 0, err
    assert [line for line in sorted(job.told) if "work" in line] == DONE
    assert "restart 2 of 2: all workers begin again, 3\n" in err
    assert "rank 2 had ended well, and begins again, too" in err
    assert "goes on without" not in err and "all others have ended" not in err


# Rank 1 is lost once, comes back, and is admitted. Both do their work together, and rank 0 ends well.
ADMITTED = """
import asyncio
import aiodist as dist
here(f"{COUNT} {os.getpid()}")
async def main():
    async with await dist.join(timeout=60) as pg:
        if COUNT == 2:
            await pg.barrier()
            tell("has done its work")
            return
        if COUNT == 0 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if RANK == 0:
            try:
                await pg.barrier()
            except dist.PeerLost:
                pg = await pg.rebuild()
            if pg.size == 1:
                pg = await pg.grow(1)
        await pg.barrier()
        if IN_GROUP and RANK == 1:
            fail()
    if RANK == 1:
        fail()
def fail():
    until_go()
    error = dist.RendezvousTimeout("no monitor was there", hint="Start one")
    if LOGS:
        import traceback
        traceback.print_exception(error)
        os.kill(os.getpid(), signal.SIGKILL)
    raise error
dist.run(main())
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(("logs", "in_group"), few(product([False, True], repeat=2), [(False, False)]))
def test_the_failure_of_a_worker_that_was_admitted_counts_whatever_its_error(
    start: Start, logs: bool, in_group: bool
) -> None:
    job = start(f"LOGS, IN_GROUP = {logs}, {in_group}\n" + ADMITTED, "--max-restarts", "2")
    pid = int(next(line for line in job.expect(3) if line.startswith("0 ")).split()[2])
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of rank 0")
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert [line for line in sorted(job.told) if "work" in line] == DONE[:2]
    assert "restart 2 of 2: all workers begin again, 2\n" in err
    assert "rank 0 had ended well, and begins again, too" in err


@pytest.mark.slow(COSTLY)
def test_workers_of_a_late_node_are_no_members_before_they_are_admitted(start: Start, port: int) -> None:
    body = """
    import asyncio
    import aiodist as dist
    here(f"{COUNT} up")
    async def main():
        async with await dist.join(timeout=60) as pg:
            await pg.barrier()
            if COUNT == 1:
                tell("has done its work")
                return
            if RANK == 0:
                tell("is left")
                while not os.path.exists(os.environ["GO"]):
                    await asyncio.sleep(0.01)
                raise ValueError("a bug")
    dist.run(main())
    """
    first = start(body, *node(port, "1:2", "--max-restarts", "1"))
    first.expect(3)
    late = start(body, *node(port, "1:2", "--max-restarts", "1"), nproc=1)
    late.expect(1)
    first.go.touch()
    ends = [job.end() for job in (first, late)]
    assert [end[0] for end in ends] == [0, 0], ends
    assert sorted(line for job in (first, late) for line in job.told if "work" in line) == DONE
    for _, _, err in ends:
        assert "rank 0 failed (exit code 1); restart 1 of 1: all workers begin again, 3 on 2 nodes\n" in err


@pytest.mark.slow(COSTLY)
def test_a_process_that_has_left_the_group_admits_nobody(start: Start) -> None:
    body = """
    import asyncio
    import aiodist as dist
    here(f"{COUNT} up")
    async def main():
        async with await dist.join(timeout=60) as pg:
            await pg.barrier()
            if COUNT == 1:
                tell("has done its work")
                return
            if RANK == 0:
                while not os.path.exists(os.environ["GO"]):
                    await asyncio.sleep(0.01)
                raise ValueError("a bug")
        tell("has left")
        wait()
    dist.run(main())
    """
    job = start(body, "--max-restarts", "1")
    while "1 has left" not in job.told:
        job.expect(len(job.told) + 1)
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert [line for line in sorted(job.told) if "work" in line] == DONE[:2]
    assert "rank 0 failed (exit code 1); restart 1 of 1: all workers begin again, 2\n" in err
