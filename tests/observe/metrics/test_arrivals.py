"""Who came last: each collective is counted once, however often and in whatever pieces it is seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.metrics.arrivals import Arrivals, LastArrival
from aiodist.observe.recorder.reading import Group, Record
from aiodist.observe.view import JobView
from tests.observe.made import a_job
from tests.observe.metrics.made import collective, seen

WORLD = Group("world", 0, range(3))
PAIR = Group("a pair", 0, (0, 2))


def job(*records: list[Record], pids: tuple[int, ...] = (1, 2, 3)) -> JobView:
    """A job of three ranks, which have issued these."""
    return a_job(
        *(
            seen(rank, last=last, groups=[WORLD, PAIR], pid=pids[rank], size=3)
            for rank, last in enumerate(records)
        )
    )


def test_the_last_one_and_what_the_others_lost() -> None:
    looked = job(*([collective(WORLD, 0, issued)] for issued in (1.0, 2.0, 4.0)))
    arrivals = Arrivals()
    assert list(arrivals.take(looked)) == [LastArrival(2, 5.0)]
    assert list(arrivals.take(looked)) == []


def test_who_has_not_come_yet_is_counted_when_it_comes() -> None:
    arrivals = Arrivals()
    first, second = collective(WORLD, 0, 1.0), collective(WORLD, 1, 2.0)
    assert list(arrivals.take(job([first, second], [first], []))) == []
    late = collective(WORLD, 0, 3.0)
    assert list(arrivals.take(job([first, second], [first], [late]))) == [LastArrival(2, 4.0)]
    later = collective(WORLD, 1, 5.0)
    whole = job([first, second], [first, later], [late, collective(WORLD, 1, 4.0)])
    assert list(arrivals.take(whole)) == [LastArrival(1, 4.0)]


def test_clocks_that_are_not_known_well_enough_tell_nothing() -> None:
    views = [seen(rank, last=[collective(WORLD, 0, 1.0 + rank)], size=3, pid=rank) for rank in range(3)]
    told = [LastArrival(2, 3.0)]
    assert list(Arrivals().take(a_job(*views))) == told
    apart = [
        seen(
            rank,
            last=[collective(WORLD, 0, 1.0 + rank)],
            size=3,
            pid=rank,
            about={"argv": ["x"], "clock": str(rank)},
        )
        for rank in range(3)
    ]
    assert list(Arrivals().take(a_job(*apart))) == [LastArrival(None, 0.0)]


def test_a_group_that_is_not_seen_whole_is_left_out() -> None:
    views = [seen(rank, last=[collective(WORLD, 0, 1.0)], size=3, pid=rank) for rank in range(2)]
    assert list(Arrivals().take(a_job(*views))) == []


def test_messages_and_operations_without_a_group_are_left_out() -> None:
    records = [
        [replace(collective(WORLD, 0, 1.0), op="send"), replace(collective(WORLD, 0, 1.0), group=None)]
        for _ in range(3)
    ]
    assert list(Arrivals().take(job(*records))) == []


def test_a_job_that_begins_anew_is_counted_anew() -> None:
    arrivals = Arrivals()
    old = [[collective(WORLD, number, 1.0 + number + rank / 10) for number in range(5)] for rank in range(3)]
    assert len(list(arrivals.take(job(*old)))) == 5
    fresh = [[collective(WORLD, 0, 20.0 + rank)] for rank in range(3)]
    assert list(arrivals.take(job(*fresh, pids=(4, 5, 6)))) == [LastArrival(2, 3.0)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[Record]], list[float]]:
    """What three ranks issue, in two groups, and when somebody looks."""
    times = [0.0, 0.0, 0.0]
    records: list[list[Record]] = [[], [], []]
    numbers: Counter[str] = Counter()
    for group in draw(st.lists(st.sampled_from([WORLD, PAIR]), max_size=12)):
        for rank in group.ranks:
            times[rank] += draw(st.integers(1, 5))
            records[rank].append(collective(group, numbers[group.name], times[rank]))
        numbers[group.name] += 1
    return records, sorted(draw(st.lists(st.integers(1, 60), max_size=8)))


@given(runs())
def test_in_pieces_or_at_once_the_same_is_counted(run: tuple[list[list[Record]], list[float]]) -> None:
    records, looks = run
    arrivals = Arrivals()
    found: Counter[LastArrival] = Counter()
    for time in (*looks, 1000.0):
        shown = [[record for record in of if record.issued <= time] for of in records]
        found.update(arrivals.take(job(*shown)))
    assert found == Counter(Arrivals().take(job(*records)))
    assert found.total() == len({(record.group, record.number) for of in records for record in of})


@pytest.mark.parametrize("kept", [1, 3])
def test_what_a_look_no_longer_shows_is_not_counted_and_nothing_twice(kept: int) -> None:
    arrivals, found = Arrivals(), 0
    for upto in range(1, 20):
        shown = [
            [collective(WORLD, number, 1.0 + number + rank / 10) for number in range(upto)][-kept:]
            for rank in range(3)
        ]
        found += len(list(arrivals.take(job(*shown))))
    assert found == 19
