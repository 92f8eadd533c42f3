"""`aiodist store`: its options, its folder, its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aiodist.base.errors
from aiodist.cli.main import main
from aiodist.rendezvous import TcpStore
from tests.levels import COSTLY
from tests.support.store_client import is_connected
from tests.waiting import until_so

SECRET = "known to the tests alone"
ROOT = Path(aiodist.__file__).parents[1]
HOST = "127.0.0.1"


@contextmanager
def store(*options: str, limit: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, and its port. `limit`: bytes of its largest file."""

    def small_files() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    env = {**os.environ, "PYTHONPATH": str(ROOT), "AIODIST_SECRET": SECRET}
    if limit is not None:
        env.pop("COVERAGE_PROCESS_START", None)  # its file would not fit, either
    process = subprocess.Popen(
        [sys.executable, "-m", "aiodist", "store", "--port", "0", *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=small_files,
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(":")[2] or 0)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def connect(
    port: int, job: str = "j", secret: bytes = SECRET.encode(), timeout: float = 60
) -> TcpStore:
    return await TcpStore.connect(HOST, port, job, secret, timeout)


@pytest.mark.slow(COSTLY)
async def test_the_folder_outlives_the_process(tmp_path: Path) -> None:
    options = ("--job", "j", "--data", str(tmp_path / "d"))
    with store(*options) as (process, port):
        async with await connect(port) as client:
            await client.set("k", "v")
            process.kill()
            process.communicate()
            with store("--job", "j", "--data", str(tmp_path / "d"), "--port", str(port)) as (second, _):
                assert await client.get("k") == b"v"
                with store(*options) as (third, _):
                    _, said = third.communicate()
                    assert third.returncode == 2
                    folder = tmp_path / "d"
                    assert said.startswith(
                        f"aiodist store: error: the store's folder {folder} is in use by pid"
                    )
                    assert said.count("\n") == 1
                second.send_signal(signal.SIGTERM)
                second.communicate()
                assert second.returncode == 143


@pytest.mark.slow(COSTLY)
async def test_a_file_that_cannot_grow_ends_the_store(tmp_path: Path) -> None:
    """The process is told by the system that it may not write, with half a record written."""
    options = ("--job", "j", "--data", str(tmp_path / "d"))
    confirmed = 0
    with store(*options, limit=20_000) as (process, port):
        client = await connect(port)

        async def fill() -> None:
            nonlocal confirmed
            while True:
                await client.append("k", bytes(777))
                confirmed += 1

        filling = asyncio.ensure_future(fill())
        _, said = await asyncio.to_thread(process.communicate)
        await until_so(lambda: not is_connected(client))  # whatever it answered has been read
        for _ in range(3):
            await asyncio.sleep(0)
        filling.cancel()
        await asyncio.wait([filling])
        await client.aclose()
        assert process.returncode == 1
        assert "CRITICAL the store stops: its files cannot be written (File too large)" in said
        assert said.count("\n") == 1
    assert confirmed > 10
    with store(*options) as (process, port):
        async with await connect(port) as client:
            assert len(await client.get("k")) == 777 * confirmed
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        assert "cut off" in said and said.count("\n") == 1


@pytest.mark.slow(COSTLY)
async def test_damage_is_one_line(tmp_path: Path) -> None:
    options = ("--job", "j", "--data", str(tmp_path / "d"))
    with store(*options) as (_, port):
        async with await connect(port) as client:
            await client.set("k", "v")
    log = tmp_path / "d" / "jobs" / "j" / "log-000001"
    log.write_bytes(log.read_bytes()[:80] + b"?" + log.read_bytes()[81:])
    with store(*options) as (process, _):
        _, said = process.communicate()
        assert process.returncode == 1
        assert said.startswith(f"aiodist store: error: the store's file {log} is damaged: ")
        assert said.count("\n") == 1


async def test_many_jobs(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for job in ("a", "b"):
        (tmp_path / "jobs" / job).write_text(f"secret of {job}")
        (tmp_path / "jobs" / job).chmod(0o600)
    with store("--jobs", str(tmp_path / "jobs"), "--data", str(tmp_path / "d")) as (_, port):
        async with (
            await connect(port, "a", b"secret of a") as a,
            await connect(port, "b", b"secret of b") as b,
        ):
            await a.set("k", "v")
            assert not await b.check(["k"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--limit", "many"), "--limit=many is not a size. Write for example 512MiB or 4GiB"),
        (("--limit", "0"), "--limit=0 is not a size"),
        (("--port", "65536"), "65536 is not a port. Ports go from 1 to 65535"),
        (("--port", "-1"), "-1 is not a port"),
        (("--limit", "5 parsecs"), "is not a size"),
        (("--job", "j", "--jobs", "d"), "--job and --jobs contradict each other"),
        (("--jobs", "/no/such/place"), "cannot be read (No such file or directory)"),
        (("--data", "/no/such/place", "--port", "0"), "cannot be used (No such file or directory)"),
    ],
)
def test_options_without_meaning(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIODIST_SECRET", raising=False)
    monkeypatch.delenv("HOME")  # a secret would be made there
    assert main(["store", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_signal_that_was_ignored_when_it_began_stays_ignored_and_one_that_was_blocked_ends_it() -> None:
    """As in a shell's background job; and whoever blocks a signal does not mean this process."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with store("--job", "j") as (process, _port):
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.communicate()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert process.returncode == 128 + signal.SIGTERM
