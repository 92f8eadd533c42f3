"""Looking at a job again and again: when it ends, and whom is asked."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.follow import LEAVING, views
from aiodist.net.stop_signals import stop_on
from aiodist.observe import JobView, source
from tests.observe.made import a_job, a_rank

WHOLE = a_job(*(a_rank(rank) for rank in range(4)))
PART = a_job(a_rank(0), a_rank(1))
DEAD = a_job(a_rank(0, alive=False))
GONE: list[JobView] = []


class Fake:
    """A source that shows these, one after the other."""

    def __init__(self, *shown: list[JobView]) -> None:
        self.shown = list(shown)
        self.note = ""
        self.closed = False

    async def read(self) -> list[JobView]:
        return self.shown.pop(0)

    async def aclose(self) -> None:
        self.closed = True


Sources = Callable[..., dict[str, Fake]]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Sets what this host shows, and what the job's store shows."""

    def put(*here: list[JobView], there: Sequence[list[JobView]] = ()) -> dict[str, Fake]:
        made = {"here": Fake(*here), "there": Fake(*there)}

        monkeypatch.setattr(source, "read_jobs", lambda key: made["here"].shown.pop(0))
        monkeypatch.setattr(source, "JobSource", lambda job, environ: made["there"])
        return made

    return put


async def seen(wanted: str | None = None) -> list[JobView | None]:
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return [job async for job, _ in views(wanted, 0.0, left)]


async def test_it_ends_when_the_job_has_gone(sources: Sources) -> None:
    sources([WHOLE], [WHOLE, replace(WHOLE, key="other")], [replace(WHOLE, key="other")])
    assert await seen() == [WHOLE, WHOLE]


async def test_it_waits_for_a_job_unless_one_is_named(sources: Sources) -> None:
    sources(GONE, [WHOLE], GONE)
    assert await seen() == [None, WHOLE]
    sources(GONE)
    with pytest.raises(UsageError, match="no job 'x'"):
        await seen("x")


async def test_a_dead_job_is_looked_at_here(sources: Sources) -> None:
    sources([DEAD], [DEAD], GONE)
    assert await seen() == [DEAD, DEAD]


async def test_a_job_that_has_just_begun_may_still_be_whole(sources: Sources) -> None:
    young = a_job(a_rank(0, began=19.0))
    sources([young], [WHOLE], GONE)
    assert await seen() == [young, WHOLE]


async def test_other_hosts_are_asked_by_the_store(sources: Sources) -> None:
    apart = a_job(a_rank(0), a_rank(1), replace(a_rank(2), host="there"))
    made = sources([PART], GONE, there=[[apart], GONE])
    assert await seen() == [apart]
    assert made["there"].closed


async def test_why_not_all_is_seen_comes_with_it(sources: Sources) -> None:
    made = sources([PART], [PART], GONE, there=[[PART]])
    made["there"].note = "nobody answers"
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert [note async for _, note in views(None, 0.0, left)] == ["nobody answers"] * 2


async def test_it_ends_when_somebody_leaves(sources: Sources) -> None:
    sources(*[[WHOLE]] * 9)
    left = stop_on(LEAVING)
    async for _ in views(None, 10.0, left):
        os.kill(os.getpid(), signal.SIGTERM)
    assert left.result() == 143
