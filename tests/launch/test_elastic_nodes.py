"""Nodes that come and go: agents as real processes on one machine, each playing a node."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.levels import COSTLY, MORE

if TYPE_CHECKING:
    from tests.launch.conftest import Job, Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")
HELLO = """
names = ("WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
told = [os.environ[name] for name in names] + [str(COUNT), os.environ.get("AIODIST_NEWCOMER", "0")]
"""
WAIT = HELLO + "here('/'.join(told))\nuntil_go()\n"
ELASTIC = "elastic()\n" + WAIT


def node(
    port: int, nnodes: str, *more: str, conf: str = "last_call_timeout=0.2", rank: int | None = None
) -> list[str]:
    options = ["--nnodes", nnodes, "--rdzv-conf", conf, "--line-prefix-template", "$rank|", *more]
    if rank is None:
        return [*options, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    return [*options, "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port)]


ALL = "last_call_timeout=300"  # the job begins when MAX nodes are there


def told(jobs: list[Job], each: int = 1) -> list[str]:
    """What the workers of all nodes say, once each has said so many lines."""
    for job in jobs:
        job.expect(each)
    return sorted(line for job in jobs for line in job.told)


def go(jobs: list[Job]) -> list[tuple[int, str, str]]:
    for job in jobs:
        job.go.touch()
    return [job.end() for job in jobs]


@pytest.mark.slow(COSTLY)
def test_a_failure_restarts_the_workers_of_all_nodes(start: Start, port: int) -> None:
    body = "here(COUNT)\nif not COUNT:\n    if RANK == 3: sys.exit(5)\n    wait()\n"
    jobs = [start(body, *node(port, "2", "--max-restarts", "2", rank=rank)) for rank in (0, 1)]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [0, 0], ends
    assert told(jobs) == [f"{rank} {count}" for rank in range(4) for count in (0, 1)]
    for end in ends:
        assert (
            "rank 3 failed (exit code 5); restart 1 of 2: all workers begin again, 4 on 2 nodes\n" in end[2]
        )
        assert end[2].endswith("aiodist run: the job ended well after 1 restart\n")


@pytest.mark.slow(COSTLY)
def test_restarts_are_counted_over_all_nodes(start: Start, port: int) -> None:
    body = "here(COUNT)\nif RANK == COUNT: sys.exit(5 + COUNT)\nwait()\n"
    jobs = [start(body, *node(port, "2", "--max-restarts", "1"), nproc=1) for _ in (0, 1)]
    for code, _, err in (job.end() for job in jobs):
        assert code == 6, err
        assert "│ 1 of 1 restart was used\n│ exit code 6\n" in err


@pytest.mark.slow(COSTLY)
def test_starts_with_max_without_a_last_call(start: Start, port: int) -> None:
    options = node(port, "1:2", conf=ALL)
    jobs = [start(WAIT, *options, nproc=1) for _ in (0, 1)]
    assert told(jobs) == ["0 2/0/2/0/0", "1 2/1/2/0/0"]
    assert [end[0] for end in go(jobs)] == [0, 0]


@pytest.mark.slow(COSTLY)
def test_a_late_node_joins_an_elastic_job(start: Start, port: int) -> None:
    jobs = [start(ELASTIC, *node(port, "1:3"))]
    jobs[0].expect(2)
    jobs.append(start(ELASTIC, *node(port, "1:3"), nproc=3))
    assert told(jobs, 2)[:2] == ["0 2/0/1/0/0", "1 2/0/1/0/0"]
    jobs[1].expect(3)
    assert sorted(jobs[1].told) == [f"{rank} 5/1/2/0/1" for rank in (2, 3, 4)]
    jobs.append(start(ELASTIC, *node(port, "1:3"), nproc=1))
    assert jobs[2].expect(1) == ["5 6/2/3/0/1"]
    ends = go(jobs)
    assert [end[0] for end in ends] == [0, 0, 0], ends
    assert [len(job.told) for job in jobs] == [2, 3, 1], "nobody was restarted"
    assert "joins the job with 3 worker(s)" in ends[0][2]


@pytest.mark.slow(COSTLY)
def test_a_late_node_makes_all_begin_again_where_the_script_is_not_elastic(start: Start, port: int) -> None:
    jobs = [start(WAIT, *node(port, "1:2"), nproc=1)]
    jobs[0].expect(1)
    jobs.append(start(WAIT, *node(port, "1:2"), nproc=1))
    jobs[0].expect(2)
    assert told(jobs) == ["0 1/0/1/0/0", "0 2/0/2/0/0", "1 2/1/2/0/0"]
    ends = go(jobs)
    assert [end[0] for end in ends] == [0, 0], ends
    assert "joins the job: all workers begin again with 2 nodes\n" in ends[0][2]
    assert "╭─" not in ends[0][2] and "restart" not in ends[0][2], "it was nobody's failure"


@pytest.mark.slow(COSTLY)
def test_workers_that_end_with_0_when_a_late_node_comes_begin_again(start: Start, port: int) -> None:
    body = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{WAIT}"  # it has saved its state
    jobs = [start(body, *node(port, "1:2"), nproc=1)]
    jobs[0].expect(1)
    jobs.append(start(body, *node(port, "1:2"), nproc=1))
    jobs[0].expect(2)
    assert told(jobs) == ["0 1/0/1/0/0", "0 2/0/2/0/0", "1 2/1/2/0/0"]
    ends = go(jobs)
    assert [end[0] for end in ends] == [0, 0], ends


@pytest.mark.slow(COSTLY)
def test_an_elastic_job_goes_on_without_a_lost_node(start: Start, port: int) -> None:
    jobs = [start(ELASTIC, *node(port, "2:3", conf=ALL), nproc=1) for _ in range(3)]
    assert sorted(line.split()[1] for line in told(jobs)) == ["3/0/3/0/0", "3/1/3/0/0", "3/2/3/0/0"]
    victim = next(job for job in jobs if "3/2/3" in job.told[0])
    victim.process.kill()
    rest = [job for job in jobs if job is not victim]
    for job in rest:
        job.until_said("node 2 is lost; the job goes on with 2")
    ends = go(rest)
    assert [end[0] for end in ends] == [0, 0], ends
    for end in ends:
        assert end[2].endswith("aiodist run: the job ended well without node 2 (lost)\n")
    assert victim.end()[0] == -signal.SIGKILL


@pytest.mark.slow(COSTLY)
def test_a_late_node_knows_of_one_that_was_lost_before_it_came(start: Start, port: int) -> None:
    """It waited for the report of that one until node 0 had left, and counted the job as failed."""
    jobs = [start(ELASTIC, *node(port, "1:3"), nproc=1)]
    for n in (1, 2):
        jobs[0].expect(1)
        jobs.append(start(ELASTIC, *node(port, "1:3"), nproc=1))
        jobs[n].expect(1)
        if n == 1:
            jobs[1].process.kill()
            jobs[0].until_said("node 1 is lost; the job goes on with 1")
    ends = go([jobs[0], jobs[2]])
    assert [end[0] for end in ends] == [0, 0], ends
    for end in ends:
        assert end[2].endswith("aiodist run: the job ended well without node 1 (lost)\n")


@pytest.mark.slow(COSTLY)
def test_a_lost_node_costs_a_restart_where_the_script_is_not_elastic(start: Start, port: int) -> None:
    jobs = [start(WAIT, *node(port, "2:3", "--max-restarts", "1", conf=ALL), nproc=1) for _ in range(3)]
    told(jobs)
    victim = next(job for job in jobs if "3/2/3" in job.told[0])
    rest = [job for job in jobs if job is not victim]
    victim.process.kill()
    assert sorted(line for line in told(rest, 2) if "2/" in line[:4]) == ["0 2/0/2/1/0", "1 2/1/2/1/0"]
    ends = go(rest)
    assert [end[0] for end in ends] == [0, 0], ends
    for end in ends:
        assert "node 2 is lost; restart 1 of 1: all workers begin again, 2 on 2 nodes\n" in end[2]


@pytest.mark.slow(COSTLY)
def test_another_node_comes_in_a_lost_ones_place(start: Start, port: int) -> None:
    """Below MIN everything waits; the late node makes it complete."""
    options = [node(port, "2", "--max-restarts", "1", rank=rank) for rank in (0, 1)]
    jobs = [start(WAIT, *option, nproc=1) for option in options]
    told(jobs)
    jobs[1].process.kill()
    jobs[0].until_said("node 1 is lost")
    jobs.append(start(WAIT, *options[1], nproc=1))
    jobs[0].expect(2)
    assert [jobs[0].told[1], *jobs[2].expect(1)] == ["0 2/0/2/1/0", "1 2/1/2/1/0"]
    ends = go([jobs[0], jobs[2]])
    assert [end[0] for end in ends] == [0, 0], ends


@pytest.mark.parametrize("elastic", [pytest.param("", marks=pytest.mark.slow(MORE)), "elastic()\n"])
def test_too_few_are_left(start: Start, port: int, elastic: str) -> None:
    options = node(port, "2:3", "--max-restarts", "1", conf="last_call_timeout=0,timeout=8")
    jobs = [start(elastic + WAIT, *options, nproc=1) for _ in range(2)]
    told(jobs)
    victim = next(job for job in jobs if "2/1/2" in job.told[0])
    rest = next(job for job in jobs if job is not victim)
    victim.process.kill()
    code, _, err = rest.end()
    assert code == 1
    assert f"│ only 1 of at least 2 nodes came to 127.0.0.1:{port} within 8 s" in err
    assert "aiodist run: node 1 was lost ─" in err


@pytest.mark.slow(COSTLY)
def test_a_spare_node_is_sent_home_at_the_end(start: Start, port: int) -> None:
    jobs = [start(ELASTIC, *node(port, "1:2", conf=ALL), nproc=1) for _ in range(2)]
    told(jobs)
    spare = start(ELASTIC, *node(port, "1:2"), nproc=1)
    head = next(job for job in jobs if job.told[0].split()[1].split("/")[1] == "0")
    head.until_said("a node waits: the job has 2 nodes, and takes no more")
    assert [end[0] for end in go(jobs)] == [0, 0]
    code, _, err = spare.end()
    assert (code, spare.told) == (0, [])
    assert err == "aiodist run: the job has ended, and did not need this node\n"


@pytest.mark.slow(COSTLY)
def test_continue_without_a_lost_node(start: Start, port: int) -> None:
    jobs = [start(WAIT, *node(port, "2", "--on-failure", "continue", rank=rank), nproc=1) for rank in (0, 1)]
    told(jobs)
    jobs[1].process.kill()
    jobs[0].until_said("node 1 is lost; the job goes on with 1")
    [(code, _, err)] = go(jobs[:1])
    assert code == 0
    assert err.endswith("aiodist run: the job ended well without node 1 (lost)\n")


@pytest.mark.slow(COSTLY)
def test_the_heads_loss_ends_the_job(start: Start, port: int) -> None:
    options = node(port, "1:2", "--max-restarts", "3", "--on-failure", "continue", conf=ALL)
    jobs = [start(ELASTIC, *options, nproc=1) for _ in range(2)]
    told(jobs)
    head, other = sorted(jobs, key=lambda job: "/1/2" in job.told[0])
    head.process.kill()
    code, _, err = other.end()
    assert code == 1
    assert err.count("node 0, which hosts the job, is lost\n") == 1 and "node 1" not in err


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("which", [0, 1])
def test_the_operators_signal_while_nodes_are_missing(start: Start, port: int, which: int) -> None:
    """On the head, and on a node that waits for the head's decision."""
    jobs = [start(WAIT, *node(port, "3", "--max-restarts", "1", rank=rank), nproc=1) for rank in range(3)]
    told(jobs)
    jobs[2].process.kill()
    jobs[0].until_said("node 2 is lost")
    jobs[1].until_said("node 2 is lost")
    jobs[which].process.send_signal(signal.SIGTERM)
    for job in jobs[:2]:
        code, _, err = job.end()
        assert code == 143, err
        assert "stopped by SIGTERM" in err


@pytest.mark.slow(COSTLY)
def test_the_operators_signal_while_waiting_for_the_first_nodes(start: Start, port: int) -> None:
    job = start("", *node(port, "2:3"))
    with socket.socket() as dialler:
        while dialler.connect_ex(("127.0.0.1", port)):
            assert job.process.poll() is None
        job.process.send_signal(signal.SIGINT)
        code, _, err = job.end()
    assert code == 130
    assert err.splitlines()[-1] == "aiodist run: stopped by SIGINT before the job began"
