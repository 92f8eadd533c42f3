"""All that is shown of a job, as plain values."""

from __future__ import annotations

import json

from aiodist.observe.recorder.reading import Event
from aiodist.observe.summary import summary
from tests.observe.made import a_job, a_rank, a_record


def test_what_is_told_of_a_job() -> None:
    ranks = [a_rank(0, began=2.0), a_rank(1, host="host-b", epoch=3, size=7), a_rank(2)]
    found = summary(None, a_job(*ranks))
    assert (found.key, found.script, found.size, found.hosts) == ("cafe", "train.py", 7, ("host-a", "host-b"))
    assert (found.epoch, found.age) == (3, 19.0)
    assert [row.rank for row in found.rows] == [0, 1, 2]
    assert found.totals.ranks == 3
    assert (found.news, found.verdicts, found.trouble) == ((), (), "")


def test_a_verdict_comes_before_news_and_a_failure_before_an_event() -> None:
    events = [Event(19.0, "an event")]
    failed = a_record(ended=18.0, failed=True)
    assert summary(None, a_job(a_rank(0, events=events))).trouble == "rank 0: an event"
    assert "has failed" in summary(None, a_job(a_rank(0, [failed], events=events))).trouble
    waits = [a_record(issued=0.5, pending=0.6)]
    ranks = [a_rank(rank, pending=waits, now=50.0, events=events) for rank in (0, 1, 3)]
    stuck = summary(None, a_job(*ranks, a_rank(2, now=50.0)))
    assert stuck.trouble == stuck.verdicts[0].title
    assert "for rank 2" in stuck.trouble


def test_news_are_bounded_and_the_newest() -> None:
    events = [Event(float(at), f"event {at}") for at in range(1, 60)]
    found = summary(None, a_job(a_rank(0, now=60.0, events=events)))
    assert [one.text for one in found.news] == [f"event {at}" for at in range(59, 39, -1)]


def test_it_is_plain_values() -> None:
    told = summary(None, a_job(*(a_rank(rank, [a_record()]) for rank in range(3)))).to_json()
    assert json.loads(json.dumps(told, allow_nan=False))["rows"][2]["what"] == "all_reduce #0"
