"""One job of a server of many does its worst: the others get in, and nobody is told a wrong reason."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.environment import files
from aiodist.base.environment.files import read_private
from aiodist.base.errors import RendezvousTimeout
from aiodist.net.wire.handshake import Handshake, Identity, Purpose
from aiodist.rendezvous import StoreServer, TcpStore, jobs
from aiodist.rendezvous.job_store import JobStore
from aiodist.rendezvous.jobs import JobSecrets
from aiodist.rendezvous.quota import clients_of_each
from tests.levels import COSTLY
from tests.support.strangers import limit_handshakes, shaking_hands
from tests.waiting import until_so

HOST = "127.0.0.1"
EACH = 5


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    for job in ("a", "b"):
        (folder / job).touch(mode=0o600)
        (folder / job).write_text(f"the secret that only job {job} knows")
    return folder


@pytest.fixture
async def server(secrets: Path) -> AsyncIterator[StoreServer]:
    """Has descriptors for five clients of each job."""
    async with await StoreServer.start_many(HOST, 0, JobSecrets(secrets)) as server:
        server._descriptors = 64 + 2 * server._most_unauthenticated + 2 * 4 + 2 * EACH
        assert clients_of_each(2, server._most_unauthenticated, server._descriptors) == EACH
        yield server


async def connect(port: int, job: str, timeout: float = 60) -> TcpStore:
    return await TcpStore.connect(HOST, port, job, f"the secret that only job {job} knows".encode(), timeout)


async def test_a_job_has_its_share_and_the_others_have_theirs(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(await connect(server.port, "a")) for _ in range(EACH)]
        await asyncio.gather(*(one.add("n", 1) for one in crowd))
        late = await stack.enter_async_context(await connect(server.port, "a"))
        waits = asyncio.ensure_future(late.add("n", 1))
        await until_so(lambda: late._vain >= 2)
        for _ in range(EACH):
            b = await stack.enter_async_context(await connect(server.port, "b"))
            await b.add("n", 1)
        assert await b.get("n") == b"%d" % EACH
        assert len(server._stores["a"].clients) == EACH
        assert f"{EACH} clients of this job are connected, and no job may have more" in caplog.text
        assert not waits.done(), "it is no error, and may pass"
        await crowd.pop().aclose()
        assert await waits == EACH + 1
        assert (late._vain, late._away) == (0, "")


async def test_who_is_turned_back_is_heard_no_further(server: StoreServer) -> None:
    """What came behind its proof is of a connection that is closed by then: nothing goes wrong with that."""
    async with AsyncExitStack() as stack:
        for _ in range(EACH):
            await (await stack.enter_async_context(await connect(server.port, "a"))).check([])
        reader, writer = await asyncio.open_connection(HOST, server.port)
        identity = Identity("a", Purpose.store, 0, os.urandom(16))
        handshake = Handshake.client(identity, b"the secret that only job a knows", os.urandom(16))
        writer.write(handshake.data_to_send())
        handshake.receive(await reader.read(4096))
        behind = b"\x40\0\0\0 what follows"
        writer.write(handshake.data_to_send() + behind)  # in one segment with the proof
        said = await reader.read()
        assert b"clients of this job are connected" in said
        writer.close()


async def test_who_finds_no_place_in_time_is_told_why(server: StoreServer) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(EACH):
            await (await stack.enter_async_context(await connect(server.port, "a"))).check([])
        late = await stack.enter_async_context(await connect(server.port, "a", 0.5))
        with pytest.raises(RendezvousTimeout, match=rf'; it says: "{EACH} clients of this job are connected'):
            await late.add("n", 1)


async def test_who_comes_back_has_its_place_still(server: StoreServer) -> None:
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(await connect(server.port, "a")) for _ in range(EACH)]
        await asyncio.gather(*(one.add("n", 1) for one in crowd))
        connection = crowd[0]._connection
        assert connection is not None
        crowd[0]._connection_lost(connection, None)  # it alone has noticed
        assert await crowd[0].add("n", 1) == EACH + 1
        connection.abort()


async def test_a_client_whose_store_is_being_opened_is_authenticated(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has proved itself: a crowd that has not does not push it out, nor does it take their place."""
    gate = asyncio.Event()
    recover = server._recover

    async def slowly(store: JobStore) -> None:
        await gate.wait()
        await recover(store)

    monkeypatch.setattr(server, "_recover", slowly)
    limit_handshakes(server, 1)
    connecting = asyncio.ensure_future(connect(server.port, "a"))
    await until_so(lambda: "a" in server._stores)
    assert not shaking_hands(server)
    unauthenticated = [await asyncio.open_connection(HOST, server.port) for _ in range(5)]
    for _, writer in unauthenticated:
        writer.write(b"AIO")
    await until_so(lambda: shaking_hands(server) == 1)
    gate.set()
    async with await connecting as store:
        assert await store.add("n", 1) == 1
        assert store._connections == 1
    for _, writer in unauthenticated:
        writer.transport.abort()


# The secrets.


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
async def test_secrets_that_cannot_be_read_now_are_no_verdict(
    number: int, server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither for who knows the secret, nor for who does not, nor for a job that there is not."""
    tried: list[str] = []

    def fail(path: Path, *flags: int) -> int:
        tried.append(path.name)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(files, "open_file", fail)
        connecting = asyncio.ensure_future(connect(server.port, "a"))
        await until_so(lambda: len(tried) >= 3)
        assert not connecting.done()
    async with await connecting as store:
        assert await store.add("n", 1) == 1
    assert f"the secrets of the jobs cannot be read now ({os.strerror(number)})" in caplog.text
    assert "another secret" not in caplog.text


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of secrets that were read; their last change counts as long past."""
    monkeypatch.setattr(jobs, "_TIME_STEP", -1.0)
    found: list[str] = []

    def read(what: str, path: Path, **options: Any) -> bytes:
        found.append(path.name)
        return read_private(what, path, **options)

    monkeypatch.setattr(jobs, "read_private", read)
    return found


def test_secrets_are_read_again_where_their_file_is_another_or_has_changed(
    secrets: Path, reads: list[str]
) -> None:
    known = JobSecrets(secrets)
    reads.clear()
    for _ in range(3):
        assert known.secret_of("a") == b"the secret that only job a knows"
    assert reads == []
    (secrets / "a").write_text("changed")
    assert [known.secret_of("a") for _ in range(2)] == [b"changed"] * 2
    (secrets / "new").touch(mode=0o600)
    (secrets / "new").write_text("another")  # of another inode
    (secrets / "new").rename(secrets / "a")
    assert [known.secret_of("a") for _ in range(2)] == [b"another"] * 2
    assert reads == ["a", "a"]
    (secrets / "a").chmod(0o640)
    assert known.secret_of("a") is None
    (secrets / "a").unlink()
    assert known.secret_of("a") is None
    assert known.names() == ["b"]
    assert "a" not in known._kept


def test_a_file_that_has_just_changed_may_change_again_unseen(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of files are coarse: two changes may bear the same one."""
    known = JobSecrets(secrets)
    monkeypatch.setattr(jobs, "_TIME_STEP", 1e6)
    facts = (secrets / "a").stat()
    for text in (b"x" * facts.st_size, b"y" * facts.st_size):
        (secrets / "a").write_bytes(text)
        os.utime(secrets / "a", ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert known.secret_of("a") == text


def test_one_file_of_all_secrets_is_kept_alike(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "jobs"
    path.touch(mode=0o600)
    path.write_text("a one\nb two\n")
    known = JobSecrets(path)
    assert [known.secret_of(job) for job in ("a", "b", "c")] == [b"one", b"two", None]
    assert known.names() == ["a", "b"]
    assert reads == ["jobs"]


# A server in earnest.


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")
async def test_a_job_that_takes_all_descriptors_that_it_can_get(secrets: Path, tmp_path: Path) -> None:
    """Of a server that may have 128: none was left for the other job, whose secret was said to be wrong."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    command = [sys.executable, "-m", "aiodist", "store", "--port", "0", "--jobs", str(secrets)]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=limit,
    ) as process:
        assert process.stdout is not None
        port = int((await asyncio.to_thread(process.stdout.readline)).rpartition(":")[2])
        try:
            async with AsyncExitStack() as stack:
                for _ in range(140):
                    await stack.enter_async_context(await connect(port, "a"))
                async with await connect(port, "b") as b:
                    assert await b.add("n", 1) == 1
        finally:
            process.terminate()
