"""Finding the job, and its other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from aiodist.dashboard import sight
from aiodist.errors import RendezvousError, UsageError
from aiodist.observe.view import JobView
from tests.observe.views import a_job, a_rank

HERE = a_job(a_rank(0), a_rank(1))
ALL = a_job(*HERE.ranks, replace(a_rank(2), host="there"), replace(a_rank(3), host="there"))


class Fake:
    """A source of what a test sets."""

    def __init__(self, jobs: list[JobView]) -> None:
        self.jobs = jobs
        self.fails = False
        self.looks = 0
        self.open = True

    async def look(self) -> list[JobView]:
        assert self.open
        self.looks += 1
        if self.fails:
            raise RendezvousError("the store is gone")
        return self.jobs

    async def aclose(self) -> None:
        self.open = False


class Sources:
    """The sources that a sight makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.store = Fake([HERE]), Fake([ALL])
        self.keys: list[str | None] = []
        self.can = True
        monkeypatch.setattr(sight, "HostSource", self.of_host)
        monkeypatch.setattr(sight, "source_of", self.of_job)

    def of_host(self, key: str | None = None) -> Fake:
        self.keys.append(key)
        return self.host

    def of_job(self, job: JobView, environ: Mapping[str, str]) -> Fake:
        if not self.can:
            raise UsageError("there is no store")
        assert job.key == HERE.key and environ == {"AIODIST_SECRET": "hush"}
        self.store.open = True
        return self.store


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(monkeypatch)


def first(jobs: Sequence[JobView]) -> JobView | None:
    return jobs[0] if jobs else None


def made() -> sight.Sight:
    return sight.Sight(first, {"AIODIST_SECRET": "hush"})


async def test_other_hosts_are_seen_by_the_store(sources: Sources) -> None:
    one = made()
    assert await one.look() == ALL
    assert await one.look() == ALL
    assert (sources.host.looks, sources.store.looks) == (1, 2)
    await one.aclose()
    assert not sources.store.open


async def test_without_the_store_this_host_is_shown_and_the_error_told_once(sources: Sources) -> None:
    one = made()
    sources.store.fails = True
    with pytest.raises(RendezvousError):
        await one.look()
    assert await one.look() == HERE
    assert sources.store.looks == 1
    sources.store.fails, one._due = False, 0.0  # later
    assert await one.look() == ALL
    sources.store.fails = True
    assert await one.look() == HERE


async def test_a_store_that_shows_no_other_host_is_not_asked_again_at_once(sources: Sources) -> None:
    sources.store.jobs = [HERE]
    one = made()
    assert [await one.look() for _ in range(3)] == [HERE] * 3
    assert sources.store.looks == 1


async def test_where_there_is_no_store_and_where_all_are_here(sources: Sources) -> None:
    sources.can = False
    assert await made().look() == HERE
    sources.can, sources.host.jobs = True, [a_job(*(a_rank(rank) for rank in range(4)))]
    assert await made().look() == sources.host.jobs[0]
    assert sources.store.looks == 0


async def test_only_the_jobs_files_are_read_until_it_has_gone(sources: Sources) -> None:
    sources.can = False
    one = made()
    await one.look()
    sources.host.jobs = []
    assert await one.look() is None
    assert sources.keys == [None, HERE.key, None]
