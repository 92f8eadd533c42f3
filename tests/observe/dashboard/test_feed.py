"""What pages are told of a job from its beginning to its end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.view import JobView, RankView, Stacks
from tests.observe.made import a_job, a_record
from tests.observe.made import a_rank as at_twenty

a_rank = partial(at_twenty, now=10.0, began=0.0)


class Told:
    """A feed of the views that a test sets."""

    def __init__(self) -> None:
        self.job: JobView | None = None
        self.error = ""
        self.asked: list[int] = []
        self.feed = Feed(self.read, Logs("here"), ask=self.ask, after=3.0, now=lambda: 1000.0)

    async def read(self) -> tuple[JobView | None, str]:
        return self.job, self.error

    def ask(self, views: Iterable[RankView]) -> list[RankView]:
        found = [replace(view, stacks=Stacks(("train.py:75 in evaluate",))) for view in views]
        self.asked += [view.rank for view in found]
        return found

    async def shown(self) -> dict[str, Any]:
        await self.feed.step()
        return dict(json.loads(self.feed.whole()[1]))


async def test_a_stall_is_judged_with_what_the_culprit_does_and_it_is_asked_once() -> None:
    told = Told()
    stuck = a_record(number=7, issued=2.0)
    waiting = [a_rank(rank, last=[stuck], pending=[stuck]) for rank in (0, 1, 3)]
    told.job = a_job(*waiting[:2], a_rank(2, last=[a_record(number=6, issued=1.0)]), waiting[2])
    shown = await told.shown()
    (verdict,) = shown["verdicts"]
    assert verdict["ranks"] == [2] and "has waited 8.0 s for rank 2 of 4" in verdict["title"]
    assert any("train.py:75 in evaluate" in line for line in verdict["lines"])
    told.feed._judge_due = 0.0
    assert (await told.shown())["verdicts"] == shown["verdicts"]
    assert told.asked == [2]
    told.job, told.feed._judge_due = a_job(*(a_rank(rank) for rank in range(4))), 0.0
    assert (await told.shown())["verdicts"] == []


async def test_a_job_that_has_gone_is_shown_as_it_was_and_as_ended() -> None:
    told = Told()
    assert (await told.shown())["state"] == "waiting"
    told.job = a_job(a_rank(0), a_rank(1))
    assert (await told.shown())["state"] == "live"
    told.job = None
    shown = await told.shown()
    assert shown["state"] == "ended"
    assert [row[shown["columns"].index("doing")] for row in shown["rows"]] == ["left", "left"]


async def test_between_two_attempts_a_launchers_job_has_not_ended() -> None:
    told = Told()
    told.feed = Feed(told.read, Logs("here"), ask=told.ask, launched=True)
    states = []
    for job in (None, a_job(a_rank(0)), None, a_job(a_rank(0, began=5.0))):
        told.job = job
        states.append((await told.shown())["state"])
    assert states == ["waiting", "live", "waiting", "live"]
    await told.feed.over(0, None)
    assert json.loads(told.feed.whole()[1])["state"] == "ended"


async def test_a_failed_job_is_shown_as_it_was_written_down() -> None:
    told = Told()
    told.job = a_job(a_rank(0), a_rank(1))
    await told.feed.step()
    told.job = None
    await told.feed.over(137, a_job(replace(a_rank(1), alive=False)))
    shown = json.loads(told.feed.whole()[1])
    assert (shown["state"], shown["code"]) == ("ended", 137)
    assert [row[shown["columns"].index("doing")] for row in shown["rows"]] == ["running", "dead"]
    assert shown["history"][-1]["text"] == "rank 1 on host-a has ended without leaving"


async def test_an_error_of_the_store_is_told() -> None:
    told = Told()
    told.job = a_job(a_rank(0))
    await told.feed.step()
    told.error = "the store is gone"
    assert (await told.shown())["error"] == "the store is gone"


async def test_what_is_no_number_is_nothing() -> None:
    told = Told()
    told.job = a_job(replace(a_rank(0), cpu=float("nan"), now=float("inf")))
    assert (await told.shown())["rows"]
