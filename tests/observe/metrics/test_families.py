"""A job's metrics as plain values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from aiodist.observe.metrics import catalog
from aiodist.observe.metrics.catalog import CATALOG
from aiodist.observe.metrics.families import families
from aiodist.observe.metrics.labels import MOST_RANKS
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.recorder.reading import Clock, Link, Vitals
from aiodist.observe.summary import summary
from aiodist.observe.verdict import KINDS
from aiodist.observe.view import Doing
from tests.observe.made import a_job, a_record
from tests.observe.metrics.made import a_sum, seen, told

LATE = Vitals(10.0, 1, 10.0, 0.25)


def test_all_metrics_are_told_in_their_order() -> None:
    job = a_job(seen())
    found = families(summary(None, job), job, Tally())
    assert [family.metric for family in found] == list(CATALOG)
    for family in found:
        for labels, value in family.samples:
            assert len(labels) == len(family.metric.labels)
            assert isinstance(value, int | float)
        assert len({labels for labels, _ in family.samples}) == len(family.samples)


def test_a_job() -> None:
    pending = [a_record(issued=4.0), a_record(issued=5.0)]
    job = a_job(
        seen(0, began=2.0, memory=100, cpu=1.5, vitals=LATE, sums=[a_sum(uses=4)], pending=pending),
        seen(2, began=1.0, memory=50, alive=False, links=[Link(0, 1, 0.1, 9.0, 0)]),
    )
    found = told(job)
    assert found[catalog.JOB_INFO] == {("train.py",): 1}
    assert found[catalog.START] == {(): 5001.0}
    assert found[catalog.WORLD_SIZE] == {(): 4}
    assert found[catalog.EPOCH] == {(): 0}
    states = dict.fromkeys((doing.name,) for doing in Doing) | {("unseen",): 2}
    assert found[catalog.RANKS] == {key: value or 0 for key, value in states.items()} | {
        ("waiting",): 1,
        ("dead",): 1,
    }
    assert found[catalog.IN_FLIGHT] == {("all_reduce", "world"): 2}
    assert found[catalog.OLDEST] == {(): 6.0}
    assert found[catalog.LAG] == {("here", "0"): 0.25}
    assert found[catalog.MEMORY] == {("here", "0"): 100}
    assert found[catalog.CPU] == {("here", "0"): 1.5, ("here", "2"): 0.0}
    assert found[catalog.RTT] == {}


def test_what_has_not_happened_is_told_as_0() -> None:
    found = told(a_job(seen(sums=[a_sum(uses=1)])))
    assert found[catalog.VERDICTS] == {(kind,): 0 for kind in KINDS}
    assert found[catalog.IN_FLIGHT] == found[catalog.FAILED] == {("all_reduce", "world"): 0}
    assert found[catalog.OLDEST] == found[catalog.COMPARED] == found[catalog.SENT] == {(): 0}
    assert found[catalog.LAST] == found[catalog.LOST] == {("here", "0"): 0}


def test_verdicts() -> None:
    job = a_job(*(seen(rank, now=50.0, vitals=Vitals(50.0, 1, 2.0)) for rank in range(4)))
    assert told(job)[catalog.VERDICTS]["blocked",] == 4


def test_connections() -> None:
    links = [Link(1, 100, 0.5, 0.1, 2), Link(1, 10, 0.0, 0.3, 0), Link(2, 1, 0.0, 0.2, 1)]
    found = told(a_job(seen(0, links=links), seen(1, links=links[:1])))
    assert (found[catalog.SENT], found[catalog.AGAIN]) == ({(): 211}, {(): 5})
    assert (found[catalog.BUSY], found[catalog.RTT]) == ({(): 1.0}, {(): 0.3})


def test_clocks() -> None:
    """The other host's monotonic clock is 40 s behind, and its time of day 7 s ahead."""
    clock = Clock(0, 40.0, 0.0, 0.001, 10.0)
    there = {"argv": ["x"], "clock": "two"}
    lost = {"argv": ["x"], "clock": "three"}
    job = a_job(
        seen(0),
        seen(1, host="there", about=there, clocks=[clock]),
        seen(2, host="lost", about=lost),
    )
    ahead = replace(job.ranks[1], recording=replace(job.ranks[1].recording, offset=5047.0))
    found = told(a_job(job.ranks[0], ahead, job.ranks[2]))
    assert found[catalog.OFFSET] == {("here",): 0.0, ("there",): pytest.approx(7.0)}
    assert found[catalog.ERROR] == {("here",): 0.0, ("there",): 0.001}


def test_a_large_job_is_told_by_host() -> None:
    size = MOST_RANKS + 1
    ranks = [
        seen(rank, size=size, host=f"h{rank % 2}", memory=rank, vitals=Vitals(10.0, 1, 10.0, rank / 10))
        for rank in range(4)
    ]
    found = told(a_job(*ranks))
    assert found[catalog.MEMORY] == {("h0", ""): 2, ("h1", ""): 4}
    assert found[catalog.LAG] == {("h0", ""): 0.2, ("h1", ""): pytest.approx(0.3)}


def test_two_may_scrape_at_once() -> None:
    job, tally = a_job(seen(0, sums=[a_sum(uses=5)]), seen(1, sums=[a_sum(uses=5)])), Tally()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: told(job, tally)[catalog.OPS], range(40)))
    assert found == [{("all_reduce", "world"): 10}] * 40
