"""What workers have started in sessions of their own ends with them, however that comes; or is left."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.levels import COSTLY, few

if TYPE_CHECKING:
    from tests.launch.conftest import Start
    from tests.launch.jobs import Job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans cannot be adopted")

QUICK = ("--shutdown-timeout", "0.05")
# It forks, and the old one ends: so there is always one, nobody's child, and never the same for long. Where
# nobody ends it, it ends by itself: a failing test must not leave it to the machine.
RELAY = """
until = time.monotonic() + 60
while time.monotonic() < until:
    if os.fork(): os._exit(0)
    time.sleep(0.001)
"""


def daemons(job: Job, count: int) -> list[int]:
    """The pids of so many daemons, when they have told."""
    while len(found := [int(line.split()[2]) for line in job.told if " daemon " in line]) < count:
        job.expect(len(job.told) + 1)
    return found


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("then", few(["wait()", RELAY], [RELAY]), ids=["stays", "relay"])
@pytest.mark.parametrize(
    ("end", "code"),
    [("pass", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os._exit(0)", 0)],
    ids=["well", "fails", "killed", "at-once"],
)
def test_daemon_ends_with_its_worker(start: Start, end: str, code: int, then: str) -> None:
    """`Job.end` waits until nobody holds the FIFO."""
    job = start(f"here()\ndaemon({then!r})\nuntil_go()\n{end}", *QUICK)
    daemons(job, 2)
    job.go.touch()
    assert job.end()[0] == code


@pytest.mark.parametrize(
    ("signum", "code"),
    few(
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
        [(signal.SIGKILL, -signal.SIGKILL)],
    ),
)
@pytest.mark.parametrize("then", few(["wait()", RELAY], ["wait()"]), ids=["stays", "relay"])
def test_daemon_ends_with_the_agent(start: Start, signum: signal.Signals, code: int, then: str) -> None:
    job = start(f"here()\ndaemon({then!r})\nfamily()\ntell('ready')\nwait()", *QUICK)
    daemons(job, 2)
    while sum("ready" in line for line in job.told) < 2:
        job.expect(len(job.told) + 1)
    job.process.send_signal(signum)
    assert job.end()[0] == code


@pytest.mark.parametrize("signum", few([signal.SIGTERM, signal.SIGKILL], [signal.SIGTERM]))
def test_all_that_is_stopped_ends_with_the_agent(start: Start, signum: signal.Signals) -> None:
    """Of a job that somebody has stopped, only the agent is told to end."""
    job = start(
        """
        here()
        guardian = os.getppid()
        tell(f"is of {guardian} {os.getpgid(guardian)}")
        wait()
        """,
        *QUICK,
    )
    job.expect(4)
    for line in job.told:
        if " is of " in line:
            guardian, spawner = map(int, line.split()[3:])
            for pid in (guardian, spawner):
                os.kill(pid, signal.SIGSTOP)
    job.process.send_signal(signum)
    try:
        assert job.end()[0] == (143 if signum == signal.SIGTERM else -signum)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(spawner, signal.SIGCONT)  # also where the test fails, nobody stays


@pytest.mark.parametrize("agent", few([False, True], [True]), ids=["spawner", "agent-and-spawner"])
def test_all_ends_when_the_spawner_is_killed(start: Start, agent: bool) -> None:
    """Alone, or in the same moment as the agent: each worker's guardian outlives both, and ends what is its
    worker's."""
    job = start(
        """
        here()
        tell(f"is in {os.getpgid(os.getppid())}")
        daemon()
        family()
        until_go()
        """,
        *QUICK,
    )
    daemons(job, 2)
    spawner = next(int(line.split()[3]) for line in job.told if " is in " in line)
    killed = [spawner, *([job.process.pid] if agent else [])]
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none sees the end of another
        for pid in killed:
            os.kill(pid, signum)
    job.go.touch()
    assert job.end()[0] == (-signal.SIGKILL if agent else 0)


def said(job: Job, text: str) -> bool:
    return any(text in line for line in job.told)


def test_daemon_of_a_worker_that_comes_back_is_ended_and_no_other(start: Start) -> None:
    """Rank 1 fails and is started again, into the running group."""
    job = start(
        """
        here()
        if RANK == 0: elastic()
        daemon()
        if RANK == 1 and COUNT == 0:
            until_go()
            sys.exit(5)
        tell("goes on")
        if RANK == 0:
            while not os.path.exists(os.environ["GO"] + "2"): time.sleep(0.01)
        """,
        "--max-restarts",
        "1",
        *("--shutdown-timeout", "0.6"),  # longer than it takes to see that a worker shall come back
    )
    daemons(job, 2)
    while not said(job, "0 goes on"):
        job.expect(len(job.told) + 1)
    by_rank = {line.split()[0]: int(line.split()[2]) for line in job.told if " daemon " in line}
    kept, ended = os.pidfd_open(by_rank["0"]), os.pidfd_open(by_rank["1"])
    job.go.touch()
    while not said(job, "1 goes on"):
        job.expect(len(job.told) + 1)
    assert select.select([ended], [], [], 0)[0] == [ended], "what it left behind was there when it came back"
    assert select.select([kept], [], [], 0)[0] == []
    job.go.with_name(job.go.name + "2").touch()
    code, _, err = job.end()
    assert code == 0, err
    os.close(kept)
    os.close(ended)


def test_daemons_may_be_left(start: Start) -> None:
    """Only they: the process group ends."""
    job = start(
        "here()\ndaemon()\nfamily()\nkin.stdout.close()\nkin.returncode = 0", "--leave-daemons", *QUICK
    )
    left = [os.pidfd_open(pid) for pid in daemons(job, 2)]
    _, err = job.process.communicate()
    assert (job.process.returncode, err) == (0, "")
    assert select.select(left, [], [], 0)[0] == []
    for fd in left:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
    job.all_gone()


def test_nobody_but_guardians_adopts(start: Start) -> None:
    """PR_GET_CHILD_SUBREAPER of the worker; orphans of whatever the agent itself starts are not ours."""
    job = start(
        """
        import ctypes
        it = ctypes.c_int(7)
        assert ctypes.CDLL(None).prctl(37, ctypes.byref(it), 0, 0, 0) == 0
        parents, pid = [], os.getpid()
        while pid != int(os.environ["AGENT"]):
            parents.append(pid)
            pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        print("subreaper", it.value, len(parents))
        """,
        prefix=("sh", "-c", 'AGENT=$$ exec "$0" "$@"'),
        nproc=1,
    )
    code, out, err = job.end()
    assert code == 0, err
    assert "subreaper 0 3" in out  # worker, guardian, spawner
