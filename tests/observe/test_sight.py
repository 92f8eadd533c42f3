"""Finding the job, and its other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from aiodist.observe import source
from aiodist.observe.view import JobView
from tests.observe.made import a_job, a_rank

HERE = a_job(a_rank(0), a_rank(1))
ALL = a_job(*HERE.ranks, replace(a_rank(2), host="there"), replace(a_rank(3), host="there"))


class Fake:
    """A source of what a test sets."""

    def __init__(self, jobs: list[JobView]) -> None:
        self.jobs = jobs
        self.note = ""
        self.looks = 0
        self.open = True

    async def read(self) -> list[JobView]:
        assert self.open
        self.looks += 1
        return self.jobs

    async def aclose(self) -> None:
        self.open = False


class Sources:
    """The sources that a sight makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.store = Fake([HERE]), Fake([ALL])
        self.keys: list[str | None] = []
        monkeypatch.setattr(source, "read_jobs", self.of_host)
        monkeypatch.setattr(source, "JobSource", self.of_job)

    def of_host(self, key: str | None = None) -> list[JobView]:
        self.keys.append(key)
        self.host.looks += 1
        return self.host.jobs

    def of_job(self, job: JobView, environ: Mapping[str, str]) -> Fake:
        assert job.key == HERE.key and environ == {"AIODIST_SECRET": "hush"}
        self.store.open = True
        return self.store


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(monkeypatch)


def first(jobs: Sequence[JobView]) -> JobView | None:
    return jobs[0] if jobs else None


def made() -> source.Sight:
    return source.Sight(first, {"AIODIST_SECRET": "hush"})


async def test_other_hosts_are_seen_by_the_store(sources: Sources) -> None:
    one = made()
    assert await one.read() == (ALL, "")
    assert await one.read() == (ALL, "")
    assert (sources.host.looks, sources.store.looks) == (1, 2)
    await one.aclose()
    assert not sources.store.open


async def test_without_the_store_this_host_is_shown_and_why(sources: Sources) -> None:
    one = made()
    sources.store.note, sources.store.jobs = "nobody answers", [HERE]
    assert await one.read() == (HERE, "nobody answers")
    assert await one.read() == (HERE, "nobody answers")
    assert sources.store.looks == 1
    sources.store.note, sources.store.jobs, one._due = "", [ALL], 0.0  # later
    assert await one.read() == (ALL, "")
    sources.store.note = "it is gone"
    assert await one.read() == (HERE, "it is gone")


async def test_a_store_that_shows_no_other_host_is_not_asked_again_at_once(sources: Sources) -> None:
    sources.store.jobs = [HERE]
    one = made()
    assert [await one.read() for _ in range(3)] == [(HERE, "")] * 3
    assert sources.store.looks == 1


@pytest.mark.parametrize(
    "seen",
    [
        a_job(*(a_rank(rank) for rank in range(4))),
        a_job(a_rank(0, began=19.0)),  # the others may be starting
        a_job(a_rank(0, alive=False)),
        a_job(a_rank(0, left=9.0)),
    ],
)
async def test_the_store_is_asked_where_there_are_others_that_live(seen: JobView, sources: Sources) -> None:
    sources.host.jobs = [seen]
    assert await made().read() == (seen, "")
    assert sources.store.looks == 0


async def test_only_the_jobs_files_are_read_until_it_has_gone(sources: Sources) -> None:
    sources.host.jobs = [a_job(*(a_rank(rank) for rank in range(4)))]
    one = made()
    await one.read()
    sources.host.jobs = []
    assert [await one.read() for _ in range(2)] == [(None, "")] * 2
    assert sources.keys == [None, HERE.key, None]
