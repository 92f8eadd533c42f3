"""Ranks that are forked: each is a process of its own, with what it was told, and nothing of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.forkserver import Forked, ForkRequest, servers
from tests.levels import COSTLY
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")


@pytest.mark.slow(COSTLY)
@spmd(world_size=4, env={"OF_THE_TEST": "here"})
async def test_a_rank_is_a_process_of_its_own(pg: ProcessGroup) -> None:
    assert os.environ["OF_THE_TEST"] == "here"
    assert os.getsid(0) == os.getpid()
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert "torch" not in sys.modules
    assert set(map(int, os.listdir("/proc/self/fd"))) >= {0, 1, 2}
    assert not os.isatty(0)
    pids = await pg.all_gather(np.array([os.getpid()]))
    assert len(np.unique(pids)) == 4


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_ranks_do_not_order_strings_alike(pg: ProcessGroup) -> None:
    """A program that relies on the order of a set must not pass its test."""
    hashes = np.asarray(await pg.all_gather(np.array([hash("rank")])))
    assert hashes[0] != hashes[1]


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, env={"PYTHONHASHSEED": "0"})
async def test_what_the_interpreter_reads_as_it_starts_is_obeyed(pg: ProcessGroup) -> None:
    hashes = np.asarray(await pg.all_gather(np.array([hash("rank")])))
    assert hashes[0] == hashes[1]
    assert not sys.flags.hash_randomization


async def start(folder: Path, text: str) -> tuple[Forked, str]:
    """A rank without a group, which does what `text` says as it is imported → it, and what it printed."""
    (folder / "job.py").write_text(text)
    ours, theirs = os.pipe()
    with open(ours) as output:
        env = os.environ | {"OF_THE_TEST": "here"}
        arguments = [str(folder / "job.py"), "test", "{}"]
        request = ForkRequest("aiodist.testing.worker:main", arguments, env, os.getcwd())
        rank = Forked(servers()[0], request, theirs)
        os.close(theirs)
        return rank, output.read()


async def test_the_working_directory_and_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import os, sys; print(os.getcwd(), sys.argv[1:], sys.path[0], os.getpid()); os._exit(7)"
    rank, said = await start(tmp_path, text)
    arguments = [str(tmp_path / "job.py"), "test", "{}"]
    assert said.strip() == f"{tmp_path} {arguments} {tmp_path} {rank.pid}"
    assert await rank.wait() == 7
    assert await rank.wait() == 7


@pytest.mark.parametrize(
    ("end", "code"),
    [("raise SystemExit(3)", 3), ("raise ValueError('bad')", 1), ("os.kill(os.getpid(), 9)", -9)],
)
async def test_how_it_ended(tmp_path: Path, end: str, code: int) -> None:
    rank, said = await start(tmp_path, f"import os; print('begun', flush=True); {end}")
    assert said.startswith("begun\n")
    assert ("ValueError: bad" in said) == (code == 1)
    assert await rank.wait() == code


def test_one_that_is_killed_is_gone_for_good() -> None:
    with open(os.devnull, "wb") as null:
        rank = Forked(servers()[0], ForkRequest("signal:pause", (), None, "/"), null.fileno())
    before = rank.alive
    rank.end()
    assert (before, rank.alive) == (True, False)
    with pytest.raises(ProcessLookupError):
        os.kill(rank.pid, 0)
    rank.signal(signal.SIGTERM)
    rank.end()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "server._process.kill()"])
def test_nothing_outlives_who_asked_or_the_server(end: str) -> None:
    """A fork of the driver holds its descriptors open: that must keep nobody alive."""
    code = f"""if True:
        import os, signal, subprocess, sys
        from aiodist.testing.forkserver import ForkServer, Forked, ForkRequest
        quiet = os.open(os.devnull, os.O_RDWR)
        server = ForkServer(output=quiet)
        forked = Forked(server, ForkRequest("signal:pause", (), None, "/"), quiet)
        fork = os.fork()
        if not fork:
            os.dup2(quiet, 1)
            signal.pause()
        print(fork, server._process.pid, forked.pid, flush=True)
        {end}
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None and driver.stdin is not None
        fork, server, rank = map(int, driver.stdout.readline().split())
        for pid in (rank, server) if "server" not in end else (rank,):
            until(lambda: ended(pid), f"the end of process {pid}")  # noqa: B023
        os.kill(fork, signal.SIGKILL)


def ended(pid: int) -> bool:
    """Whether a process has ended, whoever has yet to take note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
