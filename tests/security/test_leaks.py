"""The secret is nowhere to be seen: no output, log, command line or error of any job, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.levels import COSTLY, MORE, few
from tests.ports import free_port

SECRET = "zxqv-the-secret-of-this-test-0123456789"
CLI = [sys.executable, "-m", "aiodist"]
MEET = """
import os, aiodist as dist
async def main():
    async with await dist.init_process_group(timeout=float(os.environ.get("PATIENCE", "60"))) as pg:
        await pg.barrier()
        {then}
dist.run(main())
"""
Run = Callable[..., str]
ALONE = {"PATIENCE": "10"}  # of a rank whose peer is refused: it waits for so many seconds


def commands_of(session: int) -> Iterator[bytes]:
    """Command lines of this process's descendants, `session` being their common ancestor."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_bytes().rsplit(b")", 1)[1].split()[1])
    for pid in parents:
        above = pid
        while above in parents and above != session:
            above = parents[above]
        if above == session:
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command with the secret in its environment → all that it said; its processes are watched."""

    def run(*command: str, code: int | None = 0, **more: str) -> str:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST")}
        environ |= {"AIODIST_SECRET": SECRET, "HOME": str(tmp_path), **more}
        if more.get("AIODIST_SECRET_FILE"):
            del environ["AIODIST_SECRET"]
        seen: list[bytes] = []
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True
        ) as process:
            watching = threading.Event()

            def watch() -> None:
                while not watching.wait(0.02):
                    seen.extend(commands_of(process.pid))

            thread = threading.Thread(target=watch)
            thread.start()
            try:
                said, _ = process.communicate(timeout=200)
            finally:
                watching.set()
                thread.join()
        assert code is None or process.returncode == code, said
        assert SECRET not in said
        assert all(SECRET.encode() not in line for line in seen)
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or file.name == "given" or SECRET.encode() not in file.read_bytes(), (
                file
            )
        return said

    return run


def script(tmp_path: Path, then: str = "pass") -> str:
    path = tmp_path / "job.py"
    path.write_text(MEET.format(then=then))
    return str(path)


@pytest.mark.slow(COSTLY)
def test_a_job_that_goes_well(run: Run, tmp_path: Path) -> None:
    run(
        *CLI, "run", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), "-t", "3", script(tmp_path)
    )
    assert list((tmp_path / "logs").rglob("*.log"))


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    "then",
    few(
        [
            "raise ValueError('boom')",
            "os.abort()",
            "os._exit(3)",
            "print(1 / (pg.rank - 1))",
            "pg.abort('enough')",
        ],
        ["print(1 / (pg.rank - 1))"],
    ),
)
def test_a_job_that_fails(run: Run, tmp_path: Path, then: str) -> None:
    said = run(
        *(*CLI, "run", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), "-t", "3"),
        script(tmp_path, then),
        code=None,
    )
    assert said


@pytest.mark.slow(COSTLY)
def test_a_secret_from_a_file(run: Run, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text(SECRET)
    given.chmod(0o600)
    run(
        *(*CLI, "run", "--nproc-per-node", "2", script(tmp_path, "raise ValueError('boom')")),
        code=None,
        AIODIST_SECRET_FILE=str(given),
    )


@pytest.mark.parametrize(
    "command", [["--help"], ["run", "--help"], ["env"], ["store", "--help"], ["run", "nothing.py"], ["run"]]
)
def test_what_the_command_line_says(run: Run, command: list[str]) -> None:
    said = run(*CLI, *command, code=None)
    if command == ["env"]:
        assert "set (AIODIST_SECRET)" in said


@pytest.mark.slow(MORE)
def test_a_rank_with_the_wrong_secret(run: Run, tmp_path: Path) -> None:
    """Both sides say so, and neither says which."""
    other = "zxqv-another-secret"
    meet = {**ALONE, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job = script(tmp_path)
    said: list[str] = []
    host = threading.Thread(
        target=lambda: said.append(run(sys.executable, job, code=1, RANK="0", **meet)), daemon=True
    )
    host.start()
    guest = run(sys.executable, job, code=1, RANK="1", **(meet | {"AIODIST_SECRET": other}))
    host.join()
    assert re.search('AuthenticationError: the peer says: "(the store|rank 0) has another secret', guest)
    assert "copy ~/.aiodist/secret" in guest
    assert other not in guest + said[0]
    assert "refused" in said[0] and "rank 1 has another secret than this process" in said[0]


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("shared", [True, False])
def test_the_secret_in_the_home(tmp_path: Path, shared: bool) -> None:
    """Under other launchers: no variable at all, and a job whose hosts share the home has a secret. Where
    each host has its own, they are told what to do."""
    homes = [tmp_path / "home0", tmp_path / ("home0" if shared else "home1")]
    for home in homes:
        home.mkdir(exist_ok=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST")}
    environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environ |= {} if shared else ALONE
    ranks = [
        subprocess.Popen(
            [sys.executable, script(tmp_path, "print('met')")],
            env=environ | {"RANK": str(rank), "HOME": str(homes[rank])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=200)[0] for rank in ranks]
    for home in homes:
        key = (home / ".aiodist" / "secret").read_text().strip()
        assert len(key) == 64 and key not in said[0] + said[1]
    if shared:
        assert said == ["met\n"] * 2
    else:
        for text in said:
            assert "another secret than this process" in text
            assert "copy ~/.aiodist/secret from one of them to the others" in text


def test_a_store_of_its_own(tmp_path: Path) -> None:
    """A client with the wrong secret is named in its log; no secret is."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST")}
    with subprocess.Popen(
        [*CLI, "store", "--port", "0"],
        env=environ | {"AIODIST_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        host, _, port = server.stdout.readline().strip().rpartition(":")

        async def knock() -> str:
            from aiodist.base.errors import AuthenticationError
            from aiodist.rendezvous import TcpStore

            with pytest.raises(AuthenticationError) as refused:
                await TcpStore.connect(host, int(port), "aiodist", b"wrong-secret", 10)
            return str(refused.value)

        told = asyncio.run(knock())
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate()
    for text in (told, said):
        assert SECRET not in text and "wrong-secret" not in text
