"""A server that keeps its store: nothing confirmed too early, no restart noticed, failures end it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.base.environment.files import Folder
from aiodist.base.errors import RendezvousError, RendezvousTimeout, StoreReplaced, UsageError
from aiodist.rendezvous import PrefixStore, StoreServer, TcpStore, WatchEvent
from aiodist.rendezvous import client as client_module
from aiodist.rendezvous import job_store as job_store_module
from aiodist.rendezvous.durable import committer as committer_module
from aiodist.rendezvous.durable.disk import Disk
from aiodist.testing.conformance_store import arrived, check_store
from tests.levels import COSTLY
from tests.rendezvous.durability_load import main as load
from tests.waiting import until_so

HOST = "127.0.0.1"


class GatedDisk(Disk):
    """Syncs once it is let, and counts."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        self.failure: OSError | None = None

    def sync(self, handle: int) -> None:
        self.gate.wait()
        self.syncs += 1
        if self.failure is not None:
            raise self.failure
        super().sync(handle)


@pytest.fixture
def disk() -> Iterator[GatedDisk]:
    disk = GatedDisk()
    yield disk
    disk.gate.set()


async def serve(folder: Path, port: int = 0, disk: Disk | None = None) -> StoreServer:
    return await StoreServer.start(HOST, port, "job", b"secret", data=folder, disk=disk)


async def connect(server: StoreServer, timeout: float = 60.0) -> TcpStore:
    return await TcpStore.connect(HOST, server.port, "job", b"secret", timeout)


# Confirmed means on the disk.


async def test_nothing_is_answered_before_it_is_on_the_disk(tmp_path: Path, disk: GatedDisk) -> None:
    async with (
        await serve(tmp_path / "d", disk=disk) as server,
        await connect(server) as one,
        await connect(server) as two,
    ):
        await one.set("before", "1")
        disk.gate.clear()
        writes = asyncio.ensure_future(one.set("k", "v"))
        await asyncio.sleep(0)
        await until_so(lambda: server.store.machine.journal.revision == 2)
        reads = asyncio.ensure_future(two.get("k"))  # what it would see might not last
        sees = asyncio.ensure_future(anext(two.watch("k")))
        committer = server.store._committer
        assert committer is not None
        await until_so(
            lambda: sum(len(answers) for _, box, _ in server.store._held for answers in box.values()) >= 3
        )
        assert not (writes.done() or reads.done() or sees.done())
        assert committer.saved < committer.submitted
        disk.gate.set()
        await writes
        assert await reads == b"v"
        assert await sees == WatchEvent("k", b"v")


async def test_many_requests_share_a_sync(tmp_path: Path, disk: GatedDisk) -> None:
    async with await serve(tmp_path / "d", disk=disk) as server, await connect(server) as store:
        await store.add("n", 1)
        before = disk.syncs
        await asyncio.gather(*(store.add("n", 1) for _ in range(500)))
        assert disk.syncs - before <= 20
        for _ in range(10):
            await store.get("n")
        assert disk.syncs - before <= 20, "a read needs no sync"


async def test_a_durable_store_is_a_store(tmp_path: Path) -> None:
    async with await serve(tmp_path / "d") as server:
        await check_store(lambda: connect(server))


# Restarts.


async def test_nobody_notices_a_restart(tmp_path: Path) -> None:
    server = await serve(tmp_path / "d")
    async with await connect(server) as one, await connect(server) as two:
        instance = one.instance
        watch = PrefixStore("w", two).watch()
        lease = await one.lease(30).begin()
        await lease.set("w/a", "1")
        assert await anext(watch) == WatchEvent("a", b"1")
        waits = asyncio.ensure_future(two.get("late"))
        meets = asyncio.ensure_future(one.barrier("b", 2, 0))
        await arrived(one, two)
        for restart in range(3):
            adds = [asyncio.ensure_future(one.add("n", 1)) for _ in range(20)]
            await asyncio.sleep(0)
            await server.aclose()
            adds += [asyncio.ensure_future(two.add("n", 1)) for _ in range(20)]
            server = await serve(tmp_path / "d", server.port)
            await asyncio.gather(*adds)
            assert await one.get("n") == b"%d" % (40 * (restart + 1))
            assert (one.instance, one.generation) == (instance, restart + 2)
        assert lease.held and not lease.lost
        await one.set("w/b", "2")
        assert await anext(watch) == WatchEvent("b", b"2")
        await two.set("late", "at last")
        await two.barrier("b", 2, 1)
        assert await waits == b"at last"
        await meets
        await lease.aclose()
        assert await anext(watch) == WatchEvent("a", None)
        await server.aclose()


async def test_a_store_that_stays_away_is_a_timeout_that_says_why(tmp_path: Path) -> None:
    server = await serve(tmp_path / "d")
    store = await connect(server, 1.5)
    waits = asyncio.ensure_future(store.get("never", timeout=1.0))
    await arrived(store)
    await server.aclose()
    with pytest.raises(RendezvousTimeout, match=r"multi_get within 1 s"):
        await waits
    with pytest.raises(RendezvousError, match=r'Connection refused; it says: "its host closed it"\)'):
        await store.set("k", "v")
    await store.aclose()


@pytest.mark.slow(COSTLY)
async def test_a_crowd_outlives_a_store_that_is_killed() -> None:
    """With processes and SIGKILL; `python -m tests.rendezvous.durability_load 200 12` is the whole test."""
    found = await load(30, 3)
    assert found["acknowledged"] > 30 * 3
    assert (found["lost"], found["applied_twice"], found["client_errors"]) == (0, 0, [])
    assert found["restarts"] == 3


async def test_the_log_is_replaced_while_clients_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "LOG_BYTES", 2000)
    async with await serve(tmp_path / "d") as server:
        async with await connect(server) as store:
            for turn in range(30):
                await asyncio.gather(*(store.set(f"k{number}", f"{turn}" * 20) for number in range(20)))
                await store.add("n", 1)
        files = sorted(path.name for path in (tmp_path / "d" / "jobs" / "job").iterdir())
        assert any(name.startswith("snapshot-") for name in files)
        assert "log-000001" not in files
    async with await serve(tmp_path / "d", server.port) as server, await connect(server) as store:
        assert await store.get("n") == b"30"
        assert await store.get("k7") == b"29" * 20


async def test_requests_wait_where_the_disk_is_too_slow(
    tmp_path: Path, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store_module, "MAX_BACKLOG", 100_000)
    async with await serve(tmp_path / "d", disk=disk) as server, await connect(server) as store:
        await store.add("n", 1)
        disk.gate.clear()
        sets = [asyncio.ensure_future(store.set("k", bytes(30_000))) for _ in range(100)]
        await until_so(lambda: server.store._paused)
        committer = server.store._committer
        assert committer is not None and committer.backlog < 1_000_000
        disk.gate.set()
        await asyncio.gather(*sets)
        assert not server.store._paused


async def test_who_asks_for_more_than_may_be_held_waits(
    tmp_path: Path, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store_module, "MAX_HELD", 1 << 20)
    monkeypatch.setattr(job_store_module, "_MANY", 1 << 18)
    async with (
        await serve(tmp_path / "d", disk=disk) as server,
        await connect(server) as greedy,
        await connect(server) as other,
    ):
        job = server.store
        await greedy.set("k", bytes(1 << 17))
        disk.gate.clear()
        adds = asyncio.ensure_future(other.add("n", 1))
        await until_so(lambda: job.machine.journal.revision == 2)
        gets = [asyncio.ensure_future(greedy.get("k")) for _ in range(40)]
        await until_so(lambda: job._stalled)
        assert job._held_bytes < 2 << 20
        for connection in job.clients.values():
            connection.abort()  # what was left aside goes with its connection, and is asked again
        await until_so(lambda: job._stalled and len(job.clients) == 2)
        disk.gate.set()
        assert await adds == 1
        assert await asyncio.gather(*gets) == [bytes(1 << 17)] * 40
        assert not job._held_bytes and not job._stalled


# Failures of the disk.


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError(errno.EIO, os.strerror(errno.EIO))],
    ids=["full", "broken"],
)
async def test_a_write_that_failed_is_never_confirmed(
    failure: OSError, tmp_path: Path, disk: GatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(tmp_path / "d", disk=disk)
    async with await connect(server) as store:
        assert await store.add("n", 1) == 1
        disk.failure = failure
        adds = [asyncio.ensure_future(store.add("n", 1)) for _ in range(10)]
        await server.wait_failed()
        assert server.failure is failure
        assert not any(add.done() for add in adds)
        [line] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
        assert str(failure.strerror) in line.getMessage() and "\n" not in line.getMessage()
        await server.aclose()
        async with await serve(tmp_path / "d", server.port):
            assert sorted(await asyncio.gather(*adds)) == list(range(2, 12))  # asked again: each counts once


async def test_a_snapshot_that_cannot_be_written_stops_the_store(
    tmp_path: Path, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "LOG_BYTES", 0)
    server = await serve(tmp_path / "d", disk=disk)
    put = disk.put

    def refuse(folder: Folder, name: str, parts: Iterator[bytes]) -> int:
        if name.startswith("snapshot"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(folder, name, parts)

    monkeypatch.setattr(disk, "put", refuse)
    async with await connect(server) as store:
        await store.add("n", 1)
        await server.wait_failed()
        assert server.failure is not None
        await server.aclose()
        async with await serve(tmp_path / "d", server.port):
            assert await store.get("n") == b"1"


async def test_damage_refuses_to_start(tmp_path: Path) -> None:
    async with await serve(tmp_path / "d") as server, await connect(server) as store:
        for number in range(10):
            await store.set("k", f"{number}")
    log = tmp_path / "d" / "jobs" / "job" / "log-000001"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(
        RendezvousError, match=rf"{log} is damaged: a record is damaged.* at byte \d+\. Restore"
    ):
        await serve(tmp_path / "d")
    assert log.read_bytes() == data


async def test_a_torn_end_is_cut_off_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with await serve(tmp_path / "d") as server, await connect(server) as store:
        await store.set("k", "v")
    log = tmp_path / "d" / "jobs" / "job" / "log-000001"
    log.write_bytes(log.read_bytes() + b"\xa9jr\nhalf a record")
    async with await serve(tmp_path / "d", server.port) as server, await connect(server) as store:
        assert await store.get("k") == b"v"
    [line] = [record.getMessage() for record in caplog.records if "cut off" in record.getMessage()]
    assert str(log) in line and "17 bytes" in line


# Other servers, older data.


async def test_one_server_at_a_time_has_the_folder(tmp_path: Path) -> None:
    async with await serve(tmp_path / "d"):
        with pytest.raises(UsageError, match="is in use by pid"):
            await serve(tmp_path / "d")


async def test_another_store_on_the_same_port_is_refused(tmp_path: Path) -> None:
    server = await serve(tmp_path / "d")
    store = await connect(server)
    await store.set("k", "v")
    await server.aclose()
    async with await serve(tmp_path / "other", server.port):
        with pytest.raises(StoreReplaced, match="is another one than before"):
            await store.get("k")
        with pytest.raises(StoreReplaced):
            await store.set("k", "v")
    await store.aclose()


async def test_an_old_copy_is_refused(tmp_path: Path) -> None:
    server = await serve(tmp_path / "d")
    store = await connect(server)
    await server.aclose()
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    for _ in range(2):
        server = await serve(tmp_path / "d", server.port)
        await store.set("k", "v")
        await server.aclose()
    async with await serve(tmp_path / "copy", server.port):
        with pytest.raises(
            StoreReplaced, match=r"is an older one than before \(start 2 on its data, it was at 3\)"
        ):
            await store.get("k")
    await store.aclose()


async def test_a_backup_that_knows_less_than_was_confirmed_is_refused(tmp_path: Path) -> None:
    """Its count of starts looks right; what it confirmed to this client is missing."""
    server = await serve(tmp_path / "d")
    store = await connect(server)
    await store.set("k", "1")
    await server.aclose()
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    server = await serve(tmp_path / "d", server.port)
    await store.set("k", "2")
    await server.aclose()
    async with await serve(tmp_path / "copy", server.port):
        with pytest.raises(StoreReplaced, match="does not know what it has confirmed to this client"):
            await store.get("k")
    await store.aclose()


async def test_a_first_call_that_was_lost_with_the_server_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1e-6)
    server = await serve(tmp_path / "d")
    async with await connect(server) as store:
        await server.aclose()
        adds = asyncio.ensure_future(store.add("n", 1))
        await asyncio.sleep(0)
        async with await serve(tmp_path / "d", server.port):
            assert await adds == 1
