"""A store found through a file: who hosts, who joins, and files of jobs that are gone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousTimeout, UsageError
from aiodist.rendezvous import FileStore, StoreServer
from aiodist.rendezvous import file_store as module
from aiodist.rendezvous.met import remember
from tests.rendezvous.conftest import Clock


async def opened(file: Path, rank: int = -1, secret: bytes = b"s", timeout: float = 10) -> FileStore:
    return await FileStore.open(file, "job", secret, timeout, rank=rank, linger=5)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def entry(**changes: Any) -> str:
    found = {
        "host": "127.0.0.1",
        "port": 1,
        "store": "00" * 16,
        "pid": dead_pid(),
        "on": socket.gethostname(),
    }
    return json.dumps({**found, **changes})


async def test_one_hosts_and_all_meet(tmp_path: Path) -> None:
    file = tmp_path / "meet"
    stores = await asyncio.gather(*(opened(file, rank) for rank in range(8)))
    assert sum(store.server is not None for store in stores) == 1
    worlds = await asyncio.gather(*(s.gather("g", 8, r, b"%d" % r) for r, s in enumerate(stores)))
    assert worlds == [[b"%d" % r for r in range(8)]] * 8
    await asyncio.gather(*(store.aclose() for store in stores))
    assert not file.exists()


async def test_the_next_job_never_meets_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "meet"
    host, guest = await opened(file), await opened(file)
    closing = asyncio.ensure_future(host.aclose())
    async with guest.watch(""):
        while file.exists():
            await guest.check([])
        later = await opened(file)
        assert later.server is not None
        assert not closing.done()
    await guest.aclose()
    await closing
    assert file.exists()
    await later.aclose()


@pytest.mark.parametrize("how", ["refused", "other store", "other job, dead host"])
async def test_a_stale_file_is_taken_over(tmp_path: Path, how: str) -> None:
    file = tmp_path / "meet"
    job = "other" if "job" in how else "job"
    async with await StoreServer.start("127.0.0.1", 0, job, b"s") as server:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1] if how == "refused" else server.port
            file.write_text(entry(port=port))
            async with await opened(file) as store:
                assert store.server is not None
                assert json.loads(file.read_text())["port"] == store.server.port


async def test_a_host_that_is_silent_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.02)
    file = tmp_path / "meet"
    loop = asyncio.get_running_loop()
    async with await loop.create_server(asyncio.Protocol, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        file.write_text(entry(port=port, pid=1))
        with pytest.raises(
            RendezvousTimeout, match=rf"within 0.2 s: .* \(127.0.0.1:{port}, pid 1 .*\)\. If that job is gone"
        ):
            await opened(file, timeout=0.2)
        file.write_text(entry(port=port))  # … but its process is
        async with await opened(file) as store:
            assert store.server is not None


async def test_whose_time_is_over_says_what_it_waited_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*given: Any) -> Any:
        found = await real(*given)
        clock.forward(60)
        return found

    file, real = tmp_path / "meet", module._reach
    async with await opened(file) as host:
        assert host.server is not None
        remember(host.server.instance)
        with monkeypatch.context() as patched:
            patched.setattr(module, "_reach", look)
            said = r"within 30 s: waited for the end of the group before, which met at the store of 127"
            with pytest.raises(RendezvousTimeout, match=said):
                await opened(file, timeout=30)
        handle = await module._locked(file)
        waits = asyncio.ensure_future(opened(file, timeout=30))
        await asyncio.sleep(0)
        clock.forward(60)
        with pytest.raises(RendezvousTimeout, match=rf"for the lock on {file}, which another process holds"):
            await waits
        os.close(handle)


async def test_the_wrong_secret_is_refused(tmp_path: Path) -> None:
    async with await opened(tmp_path / "meet"):
        with pytest.raises(AuthenticationError, match="another secret"):
            await opened(tmp_path / "meet", secret=b"x")


async def test_a_store_on_another_hosts_loopback_is_explained(tmp_path: Path) -> None:
    (tmp_path / "meet").write_text(entry(on="elsewhere"))
    with pytest.raises(UsageError, match=r"serves its own host only .* on elsewhere\). Set AIODIST_HOST"):
        await opened(tmp_path / "meet")


async def test_other_files_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    for content in ("precious", "{}", '{"host": 1, "port": 2, "store": ""}', "[]"):
        file.write_text(content)
        with pytest.raises(UsageError, match="holds something else"):
            await opened(file)
        assert file.read_text() == content
    with pytest.raises(UsageError, match="cannot be opened"):
        await opened(tmp_path / "no folder" / "meet")


@pytest.mark.skipif(sys.platform != "linux", reason="network file systems as on Linux")
def test_root_takes_nobodys_file_only_where_it_is_made_nobody_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system that does not trust root; elsewhere nobody is a user like others."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "meet").touch()
    nobodys = os.stat_result((0o100600, 1, 1, 1, 65534, 65534, 0, 0, 0, 0))
    if (tmp_path / "meet").stat().st_uid != 65534:
        with pytest.raises(UsageError, match=r"is not safe \(it belongs to user 65534"):
            module._check_own(nobodys, tmp_path / "meet")
    monkeypatch.setattr(os, "fstat", lambda handle: nobodys)
    module._check_own(nobodys, tmp_path / "meet")
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    with pytest.raises(UsageError, match=r"is not safe \(it belongs to user 4711"):
        module._check_own(os.stat_result((0o100600, 1, 1, 1, 4711, 1, 0, 0, 0, 0)), tmp_path / "meet")
