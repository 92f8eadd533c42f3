"""Restarts on one node, with real processes: of all workers, of one into the running group, of nobody."""

from __future__ import annotations

import os
import signal
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.levels import COSTLY, few
from tests.waiting import until

if TYPE_CHECKING:
    from tests.launch.conftest import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")
PLAIN = ("--line-prefix-template", "${rank}|")


@pytest.mark.slow(COSTLY)
def test_the_whole_group_is_restarted(start: Start) -> None:
    job = start(
        """
        here(f"{COUNT} {os.environ['AIODIST_STORE']}")
        names = ("LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "AIODIST_RESTART_COUNT")
        print(COUNT, *(os.environ[name] for name in names))
        if COUNT == 0:
            if RANK == 1:
                sys.exit(3)
            wait()
        """,
        "--max-restarts",
        "3",
        *PLAIN,
    )
    code, out, err = job.end()
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0|0 0 2 3 0", "0|1 0 2 3 1", "1|0 1 2 3 0", "1|1 1 2 3 1"]
    assert "aiodist run: rank 1 failed: exit code 3\n" in err
    again = "rank 1 failed (exit code 3); restart 1 of 3: all workers begin again, 2"
    assert f"aiodist run: {again}\n" in err
    assert err.endswith("aiodist run: the job ended well after 1 restart\n")
    assert "╭─" not in err
    stores = {
        attempt: {line.split()[2] for line in job.told if line.split()[1] == attempt} for attempt in "01"
    }
    assert [len(addresses) for addresses in stores.values()] == [1, 1]
    assert stores["0"] != stores["1"], "nothing of the dead attempt is in the way"


@pytest.mark.slow(COSTLY)
def test_a_group_that_keeps_failing(start: Start) -> None:
    job = start("here(COUNT)\nsys.exit(4 + COUNT if RANK == 1 else 0)", "--max-restarts", "2")
    code, _, err = job.end()
    assert code == 6
    assert sorted(job.told) == [f"{rank} {count}" for rank in (0, 1) for count in (0, 1, 2)]
    assert "rank 1 failed (exit code 5); restart 2 of 2: all workers begin again, 2\n" in err
    assert "it failed soon after its start; waiting 0.5 s before the next\n" in err
    assert "rank 1 failed first" in err and "│ 2 of 2 restarts were used\n│ exit code 6\n" in err


@pytest.mark.slow(COSTLY)
def test_who_has_ended_well_begins_again_with_all_and_is_told_so(start: Start) -> None:
    job = start(
        """
        here(f"{COUNT} {os.getpid()}")
        if COUNT == 0 and RANK == 1:
            until_go()
            sys.exit(3)
        """,
        *("--max-restarts", "1"),
        nproc=3,
    )
    first = [line.split() for line in job.expect(3)]
    others = [Path("/proc", pid) for rank, _, pid in first if rank != "1"]
    until(lambda: not any(one.exists() for one in others), "the end of ranks 0 and 2")
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    ran = sorted((int(rank), int(count)) for rank, count, _ in map(str.split, job.told))
    assert ran == list(product(range(3), range(2)))
    again = "rank 1 failed (exit code 3); restart 1 of 1: all workers begin again, 3\n"
    assert f"{again}aiodist run: ranks 0 and 2 had ended well, and begin again, too: an attempt" in err


@pytest.mark.slow(COSTLY)
def test_those_who_die_of_a_death_cost_no_restart(start: Start) -> None:
    code, _, err = start(
        """
        class PeerLost(Exception): pass
        here()
        if COUNT == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if RANK == 0:
                os.kill(os.getpid(), 9)
            raise PeerLost("lost rank 0")
        """,
        *("--max-restarts", "1"),
        nproc=3,
    ).end()
    assert code == 0, err
    assert "rank 0 failed (killed by SIGKILL); restart 1 of 1: all workers begin again" in err
    assert err.endswith("the job ended well after 1 restart\n")


@pytest.mark.slow(COSTLY)
def test_one_worker_is_restarted_into_the_running_group(start: Start) -> None:
    job = start(
        """
        elastic()
        here(f"{COUNT} {os.environ['WORLD_SIZE']} {os.environ['LOCAL_RANK']} {os.environ['AIODIST_STORE']}")
        if RANK == 1 and COUNT == 0:
            until_go()
            sys.exit(3)
        while not os.path.exists(os.environ["GO"] + "2"):
            time.sleep(0.01)
        """,
        "--max-restarts",
        "3",
        nproc=3,
    )
    job.expect(3)
    job.go.touch()
    told = job.expect(4)[3].split()
    assert told[:4] == ["1", "1", "3", "1"]
    assert {line.split()[4] for line in job.told} == {told[4]}, "it is the same store"
    Path(f"{job.go}2").touch()
    code, _, err = job.end()
    assert code == 0, err
    assert len(job.told) == 4, "nobody else was restarted"
    line = "aiodist run: rank 1 failed: exit code 3; restart 1 of 3, into the running group\n"
    assert line in err
    assert err.endswith("aiodist run: the job ended well after 1 restart\n")


@pytest.mark.slow(COSTLY)
def test_restarts_of_one_worker_are_used_up(start: Start) -> None:
    code, _, err = start(
        """
        elastic()
        here(COUNT)
        if RANK == 1:
            print(f"no {COUNT}", file=sys.stderr)
            sys.exit(3)
        wait()
        """,
        *("--max-restarts", "2"),
    ).end()
    assert code == 3
    assert "restart 1 of 2, into the running group\n" in err
    assert "restart 2 of 2, into the running group, in 0.5 s\n" in err
    box = err[err.index("╭─") :]
    assert "rank 1 failed first" in box and "│ no 2\n" in box
    assert "│ rank 1: exit code 3; started again\n" in box
    assert "│ 2 of 2 restarts were used\n│ exit code 3\n" in box


@pytest.mark.slow(COSTLY)
def test_an_elastic_group_that_dies_as_a_whole_is_restarted_as_a_whole(start: Start) -> None:
    job = start(
        """
        elastic()
        here(COUNT)
        until_go()
        os._exit(0 if COUNT else 5)  # at once: nothing at exit makes one later than the others
        """,
        *("--max-restarts", "1"),
        nproc=3,
    )
    job.expect(3)
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert sorted(job.told) == [f"{rank} {count}" for rank in range(3) for count in (0, 1)]
    assert "restart 1 of 1: all workers begin again, 3\n" in err


@pytest.mark.slow(COSTLY)
def test_the_work_is_done_while_one_is_away(start: Start) -> None:
    """Rank 1 fails twice; while it waits to be started again, rank 0 finishes the job."""
    job = start(
        """
        elastic()
        here(COUNT)
        if RANK == 1:
            sys.exit(3)
        until_go()
        """,
        *("--max-restarts", "9"),
    )
    job.until_said("restart 2 of 9, into the running group, in 0.5 s")
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert "rank 1 failed: exit code 3; all others have ended\n" in err
    assert "aiodist run: the job ended well after 2 restarts, without rank 1 (exit code 3 after " in err


@pytest.mark.slow(COSTLY)
def test_a_failure_after_the_others_have_ended_well_is_not_hidden(start: Start) -> None:
    job = start(
        """
        elastic()
        here(os.getpid())
        if RANK and not COUNT:
            until_go()
            sys.exit(3)
        """,
        *("--max-restarts", "1"),
    )
    pid = int(next(line for line in job.expect(2) if line.startswith("0 ")).split()[1])
    while Path(f"/proc/{pid}").exists():
        assert job.process.poll() is None
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert "rank 1 failed (exit code 3); restart 1 of 1: all workers begin again, 2\n" in err


def test_on_failure_continue(start: Start) -> None:
    job = start(
        """
        here()
        if RANK == 1:
            os.kill(os.getpid(), 9)
        until_go()
        """,
        *("--on-failure", "continue"),
        nproc=3,
    )
    job.until_said("rank 1 failed: killed by SIGKILL; the job goes on without it")
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert "aiodist run: the job ended well without rank 1 (killed by SIGKILL after " in err


@pytest.mark.slow(COSTLY)
def test_on_failure_continue_when_nobody_is_left(start: Start) -> None:
    code, _, err = start("here()\nsys.exit(3 + RANK)", "--on-failure", "continue").end()
    assert code in (3, 4)
    assert f"rank {code - 3} failed first" in err


@pytest.mark.slow(COSTLY)
def test_restarts_first_then_the_survivors_go_on(start: Start) -> None:
    job = start(
        """
        elastic()
        here(COUNT)
        if RANK == 1:
            sys.exit(3)
        until_go()
        """,
        *("--max-restarts", "1", "--on-failure", "continue"),
    )
    job.until_said("rank 1 failed: exit code 3; the job goes on without it")
    job.go.touch()
    code, _, err = job.end()
    assert code == 0, err
    assert sorted(job.told) == ["0 0", "1 0", "1 1"]
    assert "the job ended well after 1 restart, without rank 1 (exit code 3 after " in err


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("elastic", "signum"),
    few(
        product(["", "elastic()"], [signal.SIGINT, signal.SIGTERM]),
        [("", signal.SIGINT), ("elastic()", signal.SIGTERM)],
    ),
)
def test_the_operators_signal_during_a_backoff(start: Start, signum: signal.Signals, elastic: str) -> None:
    job = start(f"{elastic}\nhere()\nif RANK: sys.exit(3)\nwait()", "--max-restarts", "9")
    job.until_said("into the running group, in " if elastic else "before the next")
    job.process.send_signal(signum)
    code, _, err = job.end()
    assert code == 128 + signum, err
    assert f"stopped by {signum.name}" in err.splitlines()[-1]


@pytest.mark.slow(COSTLY)
def test_a_killed_agent_leaves_no_restarted_worker(start: Start) -> None:
    job = start(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elastic()
        here()
        if COUNT:
            family()
            tell("again")
        elif RANK:
            sys.exit(3)
        wait()
        """,
        *("--max-restarts", "1"),
    )
    job.expect(4)
    job.process.kill()
    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.slow(COSTLY)
def test_files_of_each_attempt(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    code, _, err = start(
        "print('out', COUNT)\nassert os.path.isdir(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']))\n"
        "sys.exit(RANK if not COUNT else 0)",
        *("--log-dir", str(logs), "-r", "1", "--max-restarts", "1"),
    ).end()
    assert code == 0, err
    [folder] = logs.iterdir()
    files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert files == {f"attempt_{n}/{rank}/stdout.log": f"out {n}\n" for n in (0, 1) for rank in (0, 1)}


@pytest.mark.slow(COSTLY)
def test_a_stopped_worker_is_news(start: Start) -> None:
    job = start("here(os.getpid())\nuntil_go()")
    pid = int(next(line for line in job.expect(2) if line.startswith("1 ")).split()[1])
    os.kill(pid, signal.SIGSTOP)
    line = job.until_said("is stopped")
    assert line == (
        f"aiodist run: rank 1 (pid {pid}) is stopped (SIGSTOP, or Ctrl-Z); the others wait for it. "
        f"To let it go on: kill -CONT {pid}\n"
    )
    os.kill(pid, signal.SIGCONT)
    assert job.until_said("goes on") == f"aiodist run: rank 1 (pid {pid}) goes on\n"
    job.go.touch()
    assert job.end()[0] == 0
