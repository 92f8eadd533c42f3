"""Who waits for whom; in random jobs that stand still the rank is blamed that was made the cause."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.observe import JobView, RankView
from aiodist.observe.parcel import pack, unpack
from aiodist.observe.recorder.reading import Group, Record, Sum
from aiodist.observe.verdict import judge
from aiodist.observe.waits import Waits, holds_up, orders, root_of
from tests.observe.made import WORLD, a_rank, a_record
from tests.observe.stalls import AFTER, CASES, Job, a_stall

# Each draws a seed; to draw every number by Hypothesis took five times as long.
randoms = st.randoms(use_true_random=True)


kinds = st.sampled_from(sorted(CASES))


def told(job: JobView) -> list[tuple[str, tuple[int, ...], str]]:
    return [(verdict.kind, verdict.ranks, verdict.title) for verdict in judge(job, AFTER)]


def check(random: Random, kind: str) -> None:
    stall = a_stall(random, kind)
    assert [one[:2] for one in told(stall.job)] == [(stall.kind, stall.ranks)]


@settings(max_examples=60)
@given(randoms, kinds)
def test_the_rank_that_was_made_the_cause_is_blamed(random: Random, kind: str) -> None:
    check(random, kind)


@pytest.mark.slow("more of the same")
@pytest.mark.parametrize("kind", sorted(CASES))
def test_the_same_of_many_jobs(kind: str) -> None:
    for seed in range(300):
        check(Random(seed), kind)


@pytest.mark.parametrize(("op", "kind"), [("send", "unreceived"), ("recv", "unsent")])
def test_a_message_to_oneself_whose_other_side_is_missing(op: str, kind: str) -> None:
    job = Job(Random(3), 3)
    job.message(job.world, "send", 1, 1, ended=True)
    job.message(job.world, "recv", 1, 1, ended=True)
    job.message(job.world, op, 1, 1)
    (verdict,) = judge(job.seen(), AFTER)
    assert (verdict.kind, verdict.ranks) == (kind, (1,))
    assert "for rank 1" in verdict.title
    job.collective(job.world, absent=[1], ends=())  # the others wait for it
    assert (kind, (1,)) in [one[:2] for one in told(job.seen())]


@settings(max_examples=25)
@given(randoms)
def test_nothing_is_said_where_nobody_waits_for_anybody(random: Random) -> None:
    job = Job(random, random.randint(2, 9))
    job.history(random.randrange(30))
    for rank in range(job.size):  # servers
        job.issue(rank, a_record("recv", 0, job.clock, group=job.world, root=-1, tag=99))
    assert told(job.seen()) == []


@settings(max_examples=25)
@given(randoms, kinds)
def test_causes_are_waited_for_and_wait_for_nobody_who_could_come(random: Random, kind: str) -> None:
    job = a_stall(random, kind).job
    waits = Waits(job.ranks)
    for wait in waits.all:
        if set(wait.absent) - {wait.rank}:
            causes = waits.causes(wait)
            for cause in causes:
                assert any(cause in other.absent for other in waits.all if other.rank != cause)
            if not causes:
                circle = waits.circle(wait)
                for one, following in zip(circle, [*circle[1:], circle[0]], strict=True):
                    assert following.rank in one.absent


def shifted(view: RankView, by: float) -> RankView:
    """The same rank, whose clock shows another time."""

    def later(record: Record) -> Record:
        times = ("issued", "pending", "arrived", "first", "ended")
        return replace(record, **{one: getattr(record, one) + by for one in times if getattr(record, one)})

    recording = view.recording
    vitals = replace(
        recording.vitals, flushed=recording.vitals.flushed + by, turned=recording.vitals.turned + by
    )
    moved = replace(
        recording,
        last=tuple(map(later, recording.last)),
        pending=tuple(map(later, recording.pending)),
        vitals=vitals,
        began=recording.began + by,
        left=recording.left + by if recording.left else 0.0,
    )
    return replace(view, now=view.now + by, recording=moved, shift=-by)


@settings(max_examples=10)
@given(randoms, kinds)
def test_a_verdict_does_not_depend_on_what_clocks_show(random: Random, kind: str) -> None:
    job = a_stall(random, kind).job
    moved = tuple(shifted(view, float(random.randrange(10**6))) for view in job.ranks)
    assert told(JobView(job.key, moved)) == told(job)


@settings(max_examples=10)
@given(randoms, kinds, st.integers(0, 5))
def test_a_verdict_stands_where_other_hosts_tell_few_operations(random: Random, kind: str, most: int) -> None:
    job = a_stall(random, kind).job
    assert told(JobView(job.key, tuple(unpack(pack(job.ranks, most))))) == told(job)


def test_the_root_of_a_broadcast_holds_others_up_and_nobody_else_does() -> None:
    record = a_record("broadcast", root=2)
    assert root_of(record) == 2
    assert holds_up(record, 2, 0) and not holds_up(record, 1, 0)
    gather = a_record("gather", root=2)
    assert holds_up(gather, 1, 2) and not holds_up(gather, 2, 1)
    assert (
        root_of(a_record()) is root_of(a_record("?", root=1)) is root_of(a_record("gather", root=9)) is None
    )
    assert holds_up(a_record(), 1, 0)


def test_a_group_that_a_recorder_had_no_room_for_says_nothing_of_the_rank() -> None:
    late = Group("late", 0, (0, 1))
    nameless = a_record("?", 3, group=None)
    waiting = a_rank(0, pending=[a_record(group=late)], groups=(WORLD, late))
    (wait,) = Waits([waiting, a_rank(1, [nameless])]).all
    assert (wait.absent, wait.complete) == ((), False)
    (wait,) = Waits([waiting, a_rank(1, [nameless], groups=(WORLD, late))]).all
    assert wait.absent == (1,)


def test_groups_of_one_name_are_told_apart() -> None:
    first, second = Group("g", 0, (0, 1)), Group("g", 0, (0, 1), 1)
    ranks = [
        a_rank(0, pending=[a_record(group=second, number=1)]),
        a_rank(1, [a_record(group=first, number=9)]),
    ]
    (wait,) = Waits(ranks).all
    assert wait.absent == (1,)


def test_receives_that_were_taken_back_took_no_message() -> None:
    def sums(uses: int, failed: int) -> list[Sum]:
        return [Sum(WORLD, "recv", "float32", (3,), "", 0, 0, 12, uses, uses, failed, 0.0, 0.0)]

    send = a_rank(0, pending=[a_record("send", 0, root=1)])
    back = a_record("recv", 0, root=0, failed=True, ended=12.0)
    (wait,) = Waits([send, a_rank(1, [back], sums=sums(1, 1))]).all
    assert wait.absent == (1,)
    again = a_record("recv", 1, root=0, ended=13.0)
    (wait,) = Waits([send, a_rank(1, [back, again], sums=sums(2, 1))]).all
    assert wait.complete


def test_a_message_to_oneself() -> None:
    (verdict,) = judge(JobView("cafe", (a_rank(0, pending=[a_record("send", root=0)]),)), 1.0)
    assert (verdict.kind, verdict.ranks) == ("unreceived", (0,))


def test_orders_are_of_one_group_and_its_members() -> None:
    half = Group("half", 0, (0, 1))
    ranks = {
        rank: a_rank(rank, [a_record(number=rank, group=half), a_record("send", 7, group=half)])
        for rank in range(3)
    }
    assert {rank: list(found) for rank, found in orders(ranks, half).items()} == {0: [0], 1: [1]}
