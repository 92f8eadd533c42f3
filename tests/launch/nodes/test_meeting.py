"""Agents of several nodes, as real processes on one machine; each plays a node."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.meeting import meet
from aiodist.launch.nodes.ports import bind_address
from aiodist.launch.nodes.store_access import StoreAccess
from tests.levels import COSTLY

if TYPE_CHECKING:
    from tests.launch.conftest import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def node(rank: int | None, port: int, nnodes: int = 2) -> list[str]:
    options = ["--nnodes", str(nnodes), "--line-prefix-template", "$rank|"]
    if rank is None:
        return [*options, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    return [*options, "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port)]


def silent(_text: str) -> None:
    pass


HELLO = """
names = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
print(*(os.environ[name] for name in names))
"""


@pytest.mark.slow(COSTLY)
def test_nodes_may_have_different_numbers_of_workers(start: Start, port: int) -> None:
    jobs = [start(HELLO, *node(1, port), nproc=1), start(HELLO, *node(0, port), nproc=2)]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [0, 0], ends
    assert sorted(ends[1][1].splitlines()) == ["0|0 3 2 0 2", "1|1 3 2 0 2"]
    assert ends[0][1] == "2|0 3 1 1 2\n"


@pytest.mark.slow(COSTLY)
def test_node_ranks_by_arrival(start: Start, port: int) -> None:
    jobs = [start(HELLO, *node(None, port), nproc=1) for _ in range(2)]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [0, 0], ends
    assert sorted(end[1] for end in ends) == ["0|0 2 1 0 2\n", "1|0 2 1 1 2\n"]


@pytest.mark.slow(COSTLY)
def test_master_port_is_free_for_the_workers(start: Start, port: int) -> None:
    script = """
    import socket
    if RANK == 0:
        with socket.socket() as mine:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            mine.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
            mine.listen()
            print("bound")
    """
    jobs = [start(script, *node(n, port), nproc=1) for n in range(2)]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [0, 0], ends
    assert ends[0][1] == "0|bound\n"


@pytest.mark.slow(COSTLY)
def test_one_verdict_on_all_nodes(start: Start, port: int) -> None:
    script = """
    here()
    if RANK == 2:
        until_go()
        raise SystemExit(9)
    wait()
    """
    jobs = [start(script, *node(n, port)) for n in range(2)]
    for job in jobs:
        job.expect(2)
    jobs[1].go.touch()
    for job in jobs:
        code, _, err = job.end()
        assert code == 9, err
        assert "rank 2 failed first" in err
        assert "stopped by aiodist run (SIGTERM)" in err


@pytest.mark.slow(COSTLY)
def test_the_operators_signal_on_one_node_ends_all(start: Start, port: int) -> None:
    jobs = [start("here()\nwait()", *node(n, port)) for n in range(2)]
    for job in jobs:
        job.expect(2)
    jobs[1].process.send_signal(signal.SIGTERM)
    for job in jobs:
        code, _, err = job.end()
        assert code == 143, err
        assert "all 4 worker(s) have ended" in err


@pytest.mark.slow(COSTLY)
def test_a_signal_while_waiting_for_the_other_nodes(start: Start, port: int) -> None:
    """Node 0's worker ends well; the operator's signal to its agent still ends the job."""
    jobs = [start("here()\nif RANK == 1: wait()", *node(n, port), nproc=1) for n in range(2)]
    for job in jobs:
        job.expect(1)
    jobs[0].process.send_signal(signal.SIGTERM)
    assert [job.end()[0] for job in jobs] == [143, 143]


@pytest.mark.slow(COSTLY)
def test_a_signal_while_meeting(start: Start, port: int) -> None:
    job = start("", *node(0, port))
    with socket.socket() as dialler:
        while dialler.connect_ex(("127.0.0.1", port)):
            assert job.process.poll() is None
        job.process.send_signal(signal.SIGINT)
        code, _, err = job.end()
    assert code == 130
    assert err.splitlines()[-1] == "aiodist run: stopped by SIGINT before the job began"


@pytest.mark.slow(COSTLY)
def test_a_node_that_cannot_start_its_workers(start: Start, port: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    jobs = [
        start("here()\nwait()", *node(0, port)),
        start("", *node(1, port), "-r", "3", "--log-dir", str(tmp_path / "file" / "logs")),
    ]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [2, 2]
    for end in ends:
        assert f"cannot write logs to {tmp_path}/file/logs: Not a directory" in end[2]


@pytest.mark.slow(COSTLY)
def test_nodes_that_disagree(start: Start, port: int) -> None:
    jobs = [start("", *node(0, port)), start("", *node(1, port, nnodes=3))]
    for job in jobs:
        code, _, err = job.end()
        assert code == 2
        assert "node 0 says --nnodes 2" in err and "says --nnodes 3" in err


@pytest.mark.slow(COSTLY)
def test_a_node_rank_taken_twice(start: Start, port: int) -> None:
    jobs = [start("", *node(n, port, nnodes=3)) for n in (0, 1, 1)]
    pidfds = [os.pidfd_open(job.process.pid) for job in jobs[1:]]
    select.select(pidfds, [], [])
    ended = next(job for job in jobs[1:] if job.process.poll() is not None)
    for pidfd in pidfds:
        os.close(pidfd)
    code, _, err = ended.end()
    assert code == 2
    assert "--node-rank 1 was taken already by an agent on" in err
    late = start("", *node(2, port, nnodes=3))
    others = [job for job in jobs if job is not ended]
    assert [job.end()[0] for job in (*others, late)] == [0, 0, 0]


@pytest.mark.slow(COSTLY)
def test_a_wrong_secret(start: Start, port: int) -> None:
    first = start("", *node(0, port), "--rdzv-conf", "timeout=200", env={"AIODIST_SECRET": "a"})
    second = start("", *node(1, port), env={"AIODIST_SECRET": "b"})
    assert second.end()[0] == 1
    first.process.send_signal(signal.SIGTERM)
    assert first.end()[0] in (1, 143)


@pytest.mark.slow(COSTLY)
def test_port_in_use_is_named(start: Start, busy: int) -> None:
    code, _, err = start("", *node(0, busy)).end()
    assert code == 1
    assert str(busy) in err and "in use" in err
    code, _, err = start("", "--master-port", str(busy)).end()
    assert code == 2
    assert f"--master-port {busy} cannot be used on 127.0.0.1: Address already in use" in err


async def test_who_is_missing_is_named(port: int) -> None:
    config = LaunchConfig(("true",), nnodes=3, node_rank=0, master_port=port, meet_timeout=0.5)
    with pytest.raises(
        RendezvousTimeout, match=r"nodes 1, 2 of 3 did not come to 127.0.0.1:\d+ within"
    ) as info:
        await meet(config, {"AIODIST_SECRET": "s"}, silent)
    assert info.value.missing == (1, 2)


async def test_nobody_there(port: int) -> None:
    config = LaunchConfig(("true",), nnodes=2, node_rank=1, master_port=port, meet_timeout=0.5)
    with pytest.raises(RendezvousTimeout, match=str(port)):
        await meet(config, {"AIODIST_SECRET": "s"}, silent)


@pytest.mark.parametrize("node_rank", [None, 0])
async def test_a_local_address_that_is_none(
    node_rank: int | None, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was first: waiting for another node 0 would only hide it. This host's name means 127.0.1.1."""
    addresses = {"box": "127.0.1.1", "192.0.2.9": "192.0.2.9"}

    def getaddrinfo(name: str, *_args: object, **_more: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    config = LaunchConfig(
        ("true",),
        nnodes=2,
        node_rank=node_rank,
        master_addr="box",
        master_port=port,
        local_addr="192.0.2.9",
        meet_timeout=0.5,
    )
    with pytest.raises(UsageError, match=r"--local-addr 192\.0\.2\.9 is no address of this node"):
        await meet(config, {"AIODIST_SECRET": "s"}, silent)


async def test_only_a_port_in_use_means_that_another_was_first(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_args: object) -> None:
        raise RendezvousError("cannot listen on 127.0.0.1:80: Permission denied")

    monkeypatch.setattr(StoreAccess, "serve", serve)
    config = LaunchConfig(("true",), nnodes=2, node_rank=None, master_port=port, meet_timeout=0.5)
    with pytest.raises(RendezvousError, match="Permission denied"):
        await meet(config, {"AIODIST_SECRET": "s"}, silent)


async def test_alone() -> None:
    nodes = await meet(LaunchConfig(("true",), nproc=3), {}, silent)
    place = nodes.place
    assert (place.world_size, place.first_rank, place.node_rank, place.master_addr) == (3, 0, 0, "127.0.0.1")
    assert not place.store.endswith(f":{place.master_port}")
    await nodes.aclose()


async def test_alone_refuses_a_port_in_use(busy: int) -> None:
    with pytest.raises(UsageError, match=f"--master-port {busy}"):
        await meet(LaunchConfig(("true",), master_port=busy), {}, silent)


def test_bind_address() -> None:
    assert bind_address("127.0.0.1") == "127.0.0.1"
    assert bind_address("127.0.0.1", "10.0.0.1") == "127.0.0.1", "it was named"
    assert bind_address("192.0.2.1", "127.0.0.1") is None
    assert bind_address("localhost") in ("127.0.0.1", "::1")
    assert bind_address("192.0.2.1") is None, "a documentation address is nobody's"
    assert bind_address("no-such-host.invalid") is None


def test_environ_is_not_touched() -> None:
    assert "AIODIST_STORE" not in os.environ
