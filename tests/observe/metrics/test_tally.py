"""Counters of ranks that come and go: they never fall, and nothing is counted twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.metrics import catalog, tally
from aiodist.observe.metrics.catalog import Metric
from aiodist.observe.metrics.labels import MOST_GROUPS, MOST_RANKS, OTHERS
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.recorder.reading import Event, Group, Link
from tests.observe.made import a_job
from tests.observe.metrics.made import a_sum, seen

WORLD = ("all_reduce", "world")


def total(tally: Tally, metric: Metric) -> float:
    return sum(tally.totals[metric].values())


def copied(tally: Tally) -> dict[Metric, dict[tuple[str, ...], float]]:
    return {metric: dict(values) for metric, values in tally.totals.items()}


def test_one_look_tells_what_the_ranks_have_counted() -> None:
    one = a_sum(uses=10, slept=6, failed=1, waited=2.0, moved=0.5, nbytes=100)
    other = a_sum(uses=5, slept=5, waited=1.0, nbytes=8)  # of another shape
    found = Tally()
    found.take(
        a_job(seen(0, sums=[one, other], cpu=3.0), seen(1, sums=[one], cpu=4.0, events=[Event(1.0, "x")]))
    )
    told: Mapping[Metric, Any] = found.totals
    assert told[catalog.OPS] == {WORLD: 25}
    assert told[catalog.FAILED] == {WORLD: 2}
    assert told[catalog.PAYLOAD] == {WORLD: 2040}
    assert told[catalog.TIMED] == {WORLD: 17}
    assert told[catalog.TIME] == {(*WORLD, "waiting"): 5.0, (*WORLD, "moving"): 1.0}
    assert told[catalog.WAITING] == {("here", "0"): 3.0, ("here", "1"): 2.0}
    assert told[catalog.CPU] == {("here", "0"): 3.0, ("here", "1"): 4.0}
    assert told[catalog.EVENTS] == {(): 1}


def test_the_same_look_again_adds_nothing() -> None:
    job = a_job(seen(0, sums=[a_sum(uses=3, waited=0.1)], links=[Link(1, 5, 0.5, 0.1, 2)]))
    found = Tally()
    found.take(job)
    before = copied(found)
    found.take(job)
    assert copied(found) == before


def test_a_rank_that_comes_back_begins_anew_and_is_added() -> None:
    found = Tally()
    found.take(a_job(seen(1, sums=[a_sum(uses=7)], cpu=5.0)))
    found.take(a_job(seen(1, sums=[a_sum(uses=2)], cpu=1.0, pid=9)))
    assert (total(found, catalog.OPS), total(found, catalog.CPU)) == (9, 6.0)


def test_a_rank_with_another_number_goes_on() -> None:
    found = Tally()
    found.take(a_job(seen(3, sums=[a_sum(waited=7.0)], pid=9)))
    found.take(a_job(seen(2, sums=[a_sum(waited=8.0)], pid=9)))
    assert found.totals[catalog.WAITING] == {("here", "3"): 7.0, ("here", "2"): 1.0}


def test_a_connection_that_is_made_anew_begins_at_0() -> None:
    found = Tally()
    for sent in (10, 15, 4, 6):
        found.take(a_job(seen(links=[Link(1, sent, sent / 10, 0.1, sent)])))
    assert (total(found, catalog.SENT), total(found, catalog.AGAIN)) == (21, 21)
    assert total(found, catalog.BUSY) == pytest.approx(2.1)


def test_of_a_large_job_ranks_are_told_by_host() -> None:
    size = MOST_RANKS + 1
    found = Tally()
    found.take(a_job(seen(0, size=size, cpu=1.0), seen(1, size=size, cpu=2.0)))
    assert found.totals[catalog.CPU] == {("here", ""): 3.0}


def test_groups_are_told_apart_up_to_a_number() -> None:
    found = Tally()
    names = [f"world.{number}" for number in range(MOST_GROUPS + 20)]
    for look in range(2):
        found.take(a_job(seen(sums=[a_sum(group=name, uses=look + 1) for name in names])))
    told = found.totals[catalog.OPS]
    assert len(told) == MOST_GROUPS + 1
    assert told["all_reduce", OTHERS] == 40
    assert told["all_reduce", names[0]] == 2


def test_names_that_are_shown_alike_are_one() -> None:
    found = Tally()
    found.take(a_job(seen(sums=[a_sum(group="a\x1bb", uses=1), a_sum(group="a\nb", uses=2)])))
    assert found.totals[catalog.OPS] == {("all_reduce", "a b"): 3}
    found.take(a_job(seen(sums=[a_sum(group="a\x1bb", uses=1), a_sum(uses=2, group="a\nb")])))
    assert total(found, catalog.OPS) == 3


def test_what_groups_that_are_gone_have_done_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums go, and are part of one that is of no group."""
    monkeypatch.setattr(tally, "MOST_COUNTS", 20)
    found = Tally()
    for number in range(50):
        group = Group(f"group {number}", 0, range(4), number)
        past = replace(a_sum(uses=number), group=None)
        found.take(a_job(seen(sums=[past, replace(a_sum(uses=1), group=group)])))
    assert total(found, catalog.OPS) == 50
    assert sum(map(len, found._before.values())) < 40


def test_not_more_is_remembered_than_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_GONE", 5)
    found = Tally()
    for pid in range(50):
        found.take(a_job(seen(sums=[a_sum(uses=1)], pid=pid)))
    assert total(found, catalog.OPS) == 50
    assert len(found._before) == 6


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["count", "fail", "restart", "hide", "show", "swap", "reconnect"]),
        st.integers(1, 50),
    ),
    max_size=40,
)


@given(STEPS)
def test_counters_never_fall_and_count_each_process_once(steps: list[tuple[int, str, int]]) -> None:
    class Process:
        def __init__(self, pid: int) -> None:
            self.pid, self.uses, self.failed, self.sent, self.shown = pid, 0, 0, 0, True

    pids = itertools.count()
    processes = [Process(next(pids)) for _ in range(4)]
    found = Tally()
    counted: dict[int, tuple[int, int]] = {}
    for rank, what, much in steps:
        process = processes[rank]
        if what == "count":
            process.uses += much
            process.sent += 100 * much
        elif what == "fail":
            process.failed += much
        elif what == "restart":
            processes[rank] = Process(next(pids))
        elif what == "swap":
            processes[rank], processes[0] = processes[0], processes[rank]
        elif what == "reconnect":
            process.sent = 0
        else:
            process.shown = what == "show"
        shown = [(number, one) for number, one in enumerate(processes) if one.shown]
        if not shown:
            continue
        before = copied(found)
        found.take(
            a_job(
                *(
                    seen(
                        number,
                        pid=one.pid,
                        sums=[a_sum(uses=one.uses, failed=one.failed, waited=float(one.uses))],
                        links=[Link(1, one.sent, 0.0, 0.0, 0)],
                    )
                    for number, one in shown
                )
            )
        )
        counted.update({one.pid: (one.uses, one.failed) for _, one in shown})
        for metric, values in before.items():
            for labels, value in values.items():
                assert found.totals[metric][labels] >= value
        assert total(found, catalog.OPS) == sum(uses for uses, _ in counted.values())
        assert total(found, catalog.FAILED) == sum(failed for _, failed in counted.values())
        assert total(found, catalog.WAITING) == sum(uses for uses, _ in counted.values())
