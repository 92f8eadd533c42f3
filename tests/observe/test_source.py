"""Where an observer has its views from: this host's files, or the job's store for other hosts, too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from aiodist.observe import exchange, source
from aiodist.observe.exchange import ViewExchange
from aiodist.observe.source import JobSource, whole
from aiodist.observe.view import JobView
from aiodist.rendezvous import PrefixStore, StoreServer, TcpStore
from tests.observe.made import a_job, a_rank, a_record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

SECRET = "a secret that is long enough for one"
ENVIRON = {"AIODIST_SECRET": SECRET}
FEW = [a_record(number=number) for number in range(100)]


def job_at(address: str, *ranks: int) -> JobView:
    about = {"argv": ["train.py"], "address": address, "job": "j", "name": "world"}
    return a_job(*(a_rank(rank, FEW, size=3, about=about) for rank in ranks))


@pytest.fixture
async def server() -> AsyncIterator[StoreServer]:
    started = await StoreServer.start("127.0.0.1", 0, job="j", secret=SECRET.encode())
    yield started
    await started.aclose()


@pytest.fixture
async def other(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Another host, which shows ranks 1 and 2 for whoever asks."""
    job = job_at(f"127.0.0.1:{server.port}", 0, 1, 2)
    here, *there = job.ranks
    monkeypatch.setattr(source, "read_ranks", lambda key: [here])
    monkeypatch.setattr(exchange, "read_ranks", lambda key: [replace(view, host="there") for view in there])
    store = await TcpStore.connect("127.0.0.1", server.port, "j", SECRET.encode(), 10.0)
    loop = asyncio.get_running_loop()
    shows = ViewExchange(loop, lambda: PrefixStore("aiodist/world", store), "cafe", lambda views: views)

    async def poll() -> None:
        while True:
            shows._begin()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(poll())
    yield
    task.cancel()
    shows.close()
    await store.aclose()


async def test_the_ranks_of_all_hosts(server: StoreServer, other: None) -> None:
    job = job_at(f"127.0.0.1:{server.port}", 0)
    found, note = await whole(job, ENVIRON)
    assert note == ""
    assert [(view.rank, view.host) for view in found.ranks] == [(0, "host-a"), (1, "there"), (2, "there")]
    assert len(found.ranks[1].recording.last) == source.FEW
    found, _ = await whole(job, ENVIRON, most=80)
    assert len(found.ranks[2].recording.last) == 80


async def test_the_secret_is_that_of_the_jobs_own_processes(
    server: StoreServer, other: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "environ_of", lambda view: ENVIRON)
    found, note = await whole(job_at(f"127.0.0.1:{server.port}", 0), {"AIODIST_SECRET": "of another job's"})
    assert (len(found.ranks), note) == (3, "")


async def test_a_source_may_be_asked_again_and_let_go_of_twice(server: StoreServer, other: None) -> None:
    asked = JobSource(job_at(f"127.0.0.1:{server.port}", 0), ENVIRON)
    for _ in range(2):
        (found,) = await asked.read()
        assert len(found.ranks) == 3
    await asked.aclose()
    await asked.aclose()


async def test_who_has_another_secret_sees_this_host_and_why(server: StoreServer, other: None) -> None:
    asked = JobSource(job_at(f"127.0.0.1:{server.port}", 0), {"AIODIST_SECRET": "another, as long as that"})
    (found,) = await asked.read()
    assert [view.rank for view in found.ranks] == [0]
    assert asked.note.startswith("only the ranks of this host are shown: ")
    assert "another secret" in asked.note
    await asked.aclose()


async def test_a_store_that_has_gone(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", 0.05)
    monkeypatch.setattr(source, "read_ranks", lambda key: [])
    asked = JobSource(job_at(f"127.0.0.1:{server.port}", 0), ENVIRON)
    assert await asked.read() == []
    await server.aclose()
    assert await asked.read() == []
    assert asked.note.startswith("only the ranks of this host are shown: ")
    await asked.aclose()


async def test_a_job_that_is_seen_whole_or_has_died_needs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = job_at("", 0, 1, 2)
    assert await whole(seen, {}) == (seen, "")
    asked = JobSource(seen, {})
    monkeypatch.setattr(source, "read_ranks", lambda key: list(seen.ranks))
    assert await asked.read() == [seen]
    assert asked.note == ""
    dead = JobView("cafe", tuple(replace(view, alive=False) for view in job_at("", 0).ranks))
    assert await whole(dead, {}) == (dead, "")


@pytest.mark.parametrize(
    "address", ["", "nowhere", None, 7, [], "x:y", "127.0.0.1:-1", ":::", "127.0.0.1:99999999"]
)
async def test_a_job_whose_store_cannot_be_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = job_at(address, 0)
    monkeypatch.setattr(source, "read_ranks", lambda key: list(seen.ranks))
    found, note = await whole(seen, ENVIRON)
    assert found == seen
    assert note.startswith("only the ranks of this host are shown: ")
