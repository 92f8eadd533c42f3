"""One server, many jobs: nobody sees, or learns of, another's."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError, UsageError
from aiodist.net.wire.handshake import Handshake, Identity, Purpose
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.rendezvous.jobs import JobSecrets
from aiodist.rendezvous.store_card import StoreCard
from aiodist.testing.conformance_store import check_store
from tests.waiting import until_so

HOST = "127.0.0.1"


def add_job(folder: Path, job: str, secret: str, mode: int = 0o600) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / job
    path.write_text(secret + "\n")
    path.chmod(mode)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    for job in ("a", "b"):
        add_job(tmp_path / "secrets", job, f"secret of {job}")
    return tmp_path / "secrets"


@pytest.fixture(params=["memory", "data"])
async def server(request: pytest.FixtureRequest, secrets: Path, tmp_path: Path) -> AsyncIterator[StoreServer]:
    data = tmp_path / "data" if request.param == "data" else None
    async with await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=data) as server:
        yield server


async def connect(server: StoreServer, job: str, secret: str | None = None) -> TcpStore:
    known = f"secret of {job}" if secret is None else secret
    return await TcpStore.connect(HOST, server.port, job, known.encode(), 10)


async def test_each_job_has_a_store_of_its_own(server: StoreServer) -> None:
    async with (
        await connect(server, "a") as a,
        await connect(server, "a") as also_a,
        await connect(server, "b") as b,
    ):
        watch = b.watch()
        await a.set("k", "of a")
        assert await also_a.get("k") == b"of a"
        assert not await b.check(["k"])
        assert await b.list_keys() == []
        assert await b.add("n", 1) == 1
        assert (await anext(watch)).key == "n", "nothing of the other job was told"
        assert await b.fence() <= 3, "numbers do not show what others do"
        assert a.instance == also_a.instance != b.instance
        assert server.clients == 3
        await b.barrier("here", 1, 0)


async def test_a_job_among_others_has_a_whole_store(server: StoreServer) -> None:
    await check_store(lambda: connect(server, "b"))


async def test_the_wrong_secret_and_the_wrong_job_look_the_same(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = set()
    with caplog.at_level(logging.DEBUG):
        for job, secret in (
            ("a", "wrong"),
            ("nobody's", "wrong"),
            ("a", "secret of b"),
            ("", "x"),
            ("../a", "x"),
        ):
            with pytest.raises(AuthenticationError) as caught:
                await connect(server, job, secret)
            said.add(str(caught.value))
    assert len(said) == 1 and "secret" in said.pop()
    assert "secret of" not in caplog.text and "wrong" not in caplog.text


def seen(server: StoreServer, job: str) -> bytes:
    """All that the server says to an unauthenticated peer who names a job, to the end."""
    guest = Handshake.client(Identity(job, Purpose.store), b"guess", bytes(16))
    serving = server._handshake()
    serving.receive(guest.data_to_send())
    said = serving.data_to_send()
    guest.receive(said)
    with pytest.raises(AuthenticationError):
        serving.receive(guest.data_to_send())
    return said + serving.data_to_send()


async def test_an_unauthenticated_peer_cannot_tell_which_jobs_there_are(server: StoreServer) -> None:
    """Everything but the nonce is the same, whatever job is named."""
    first = seen(server, "a")
    for job in ("a", "x"):
        again = seen(server, job)
        assert len(first) == len(again)
        assert sum(one != other for one, other in zip(first, again, strict=True)) <= 16, "the nonce"
    async with await connect(server, "a") as store:
        card = StoreCard(store.instance, store.generation, server._data is not None)
        assert card.encode() not in seen(server, "a"), "its name is for those who have proved"
    assert "x" not in server._stores


async def test_jobs_come_and_go_while_the_server_runs(server: StoreServer, secrets: Path) -> None:
    with pytest.raises(AuthenticationError):
        await connect(server, "new")
    add_job(secrets, "new", "secret of new")
    stores = await asyncio.gather(*(connect(server, "new") for _ in range(5)))
    await asyncio.gather(*(store.add("n", 1) for store in stores))
    assert await stores[0].get("n") == b"5"
    (secrets / "new").unlink()
    with pytest.raises(AuthenticationError):
        await connect(server, "new")
    await stores[0].set("k", "v")  # who is in stays in
    await asyncio.gather(*(store.aclose() for store in stores))
    await until_so(lambda: not server.clients)
    add_job(secrets, "newer", "secret of newer")
    async with await connect(server, "newer") as newer:
        await newer.check([])
        assert "new" not in server._stores
    add_job(secrets, "a", "changed")
    async with await connect(server, "a", "changed"):
        pass


async def test_jobs_survive_a_restart(secrets: Path, tmp_path: Path) -> None:
    server = await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data")
    async with await connect(server, "a") as a, await connect(server, "b") as b:
        await a.set("k", "a")
        await b.set("k", "b")
        await server.aclose()
        adds = [asyncio.ensure_future(store.add("n", 1)) for store in (a, b)]
        async with await StoreServer.start_many(
            HOST, server.port, JobSecrets(secrets), data=tmp_path / "data"
        ):
            assert await asyncio.gather(*adds) == [1, 1]
            assert (await a.get("k"), await b.get("k")) == (b"a", b"b")


async def test_one_jobs_damage_is_named(secrets: Path, tmp_path: Path) -> None:
    async with (
        await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data") as server,
        await connect(server, "a") as a,
    ):
        await a.set("k", "a")
    log = tmp_path / "data" / "jobs" / "a" / "log-000001"
    whole = log.read_bytes()
    log.write_bytes(b"x" + whole[1:])
    with pytest.raises(RendezvousError, match=f"{log} is damaged"):
        await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data")
    log.write_bytes(whole)  # the folder is nobody's now
    async with (
        await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data") as server,
        await connect(server, "a") as a,
    ):
        assert await a.get("k") == b"a"


async def test_a_start_that_is_cancelled_lets_go_of_the_folder(secrets: Path, tmp_path: Path) -> None:
    for turns in (0, 1, 2, 5, 12):
        starting = asyncio.create_task(
            StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data")
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            await (await starting).aclose()  # it was through already
        except asyncio.CancelledError:
            pass
        async with await StoreServer.start_many(HOST, 0, JobSecrets(secrets), data=tmp_path / "data"):
            pass


# Where the secrets are.


def test_secrets_that_others_can_read_are_refused(secrets: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = JobSecrets(secrets)
    add_job(secrets, "open", "secret", 0o640)
    for _ in range(3):
        assert jobs.secret_of("open") is None
    assert len(caplog.records) == 1 and "is open to others. chmod 600" in caplog.text
    with pytest.raises(UsageError, match="is open to others"):
        JobSecrets(secrets)
    (secrets / "open").chmod(0o600)
    assert jobs.secret_of("open") == b"secret"


@pytest.mark.parametrize(
    "job", ["", ".", "..", "../secrets/a", "/etc/passwd", "a/../a", ".hidden", "a\0", "x" * 300]
)
def test_no_job_leads_out_of_the_folder(job: str, secrets: Path) -> None:
    add_job(secrets, ".hidden", "secret")
    assert JobSecrets(secrets).secret_of(job) is None


def test_a_file_of_secrets(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_text("# jobs\n\na secret of a\nb  secret of b \n")
    path.chmod(0o600)
    jobs = JobSecrets(path)
    assert jobs.names() == ["a", "b"]
    assert (jobs.secret_of("a"), jobs.secret_of("b"), jobs.secret_of("c")) == (
        b"secret of a",
        b"secret of b",
        None,
    )
    path.write_text("a\n")
    with pytest.raises(UsageError, match=r"line 1 of .* has no secret"):
        JobSecrets(path)
    assert jobs.secret_of("a") is None
    path.chmod(0o644)
    with pytest.raises(UsageError, match="is open to others"):
        JobSecrets(path)
    with pytest.raises(UsageError, match="cannot be read"):
        JobSecrets(tmp_path / "absent")


def test_an_empty_secret_is_none(secrets: Path) -> None:
    add_job(secrets, "empty", "  ")
    with pytest.raises(UsageError, match="is empty"):
        JobSecrets(secrets)
    os.unlink(secrets / "empty")
    assert JobSecrets(secrets).names() == ["a", "b"]


def test_a_secret_of_zero_bytes_is_none(secrets: Path) -> None:
    """To HMAC it is as good as no secret, which a crash may leave in its place."""
    add_job(secrets, "zeros", "\0" * 65)
    with pytest.raises(UsageError, match=r"zeros holds zero bytes\. Write"):
        JobSecrets(secrets)
    (secrets / "lines").write_bytes(b"a secret of a\nb secret\0\n")
    (secrets / "lines").chmod(0o600)
    with pytest.raises(UsageError, match=r"line 2 of .*lines holds zero bytes"):
        JobSecrets(secrets / "lines")


def test_short_secrets_are_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    path.write_text("one hunter2\ntwo abc\n")
    path.chmod(0o600)
    monkeypatch.setattr(sys.modules["aiodist.base.environment.secret"], "_warned", False)
    JobSecrets(path)
    JobSecrets(path)
    [record] = caplog.records
    assert f"a secret in {path} is shorter than 16 bytes" in record.getMessage()
    assert "hunter2" not in caplog.text
