"""The history of a membership, from one view after another."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aiodist.observe.history import MOST, History
from aiodist.observe.recorder.reading import Event
from aiodist.observe.view import JobView, RankView
from tests.observe.made import a_job
from tests.observe.made import a_rank as at_twenty

a_rank = partial(at_twenty, now=10.0, began=0.0)


def of_epoch(view: RankView, epoch: int) -> RankView:
    return replace(view, recording=replace(view.recording, epoch=epoch))


def told(history: History) -> list[tuple[str, str]]:
    return [(entry.kind, entry.text) for entry in history.entries]


def test_a_rank_that_dies_is_told_once_and_so_is_who_takes_its_place() -> None:
    history = History()
    history.see(a_job(*(a_rank(rank) for rank in range(3))), 1.0)
    for at in (2.0, 3.0):
        history.see(a_job(a_rank(0), replace(a_rank(1), alive=False), a_rank(2)), at)
    fresh = a_rank(1, began=5.0)
    history.see(a_job(of_epoch(a_rank(0), 1), of_epoch(fresh, 1), of_epoch(a_rank(2), 1)), 1e9)
    assert told(history) == [
        ("joined", "ranks 0, 1 and 2 began on host-a"),
        ("died", "rank 1 on host-a has ended without leaving"),
        ("epoch", "epoch 1 began, with 4 ranks"),
        ("joined", "rank 1 began on host-a"),
    ]
    assert [entry.at for entry in history.entries] == [1e9, 2.0, 1e9, 1e9 + 5.0]


def test_a_death_that_a_new_epoch_follows_at_once_and_what_the_renumbered_tell() -> None:
    """Between two looks rank 0 has died, and rank 1 has become rank 0."""
    history = History()
    first = a_rank(0), a_rank(1)
    history.see(a_job(*first), 1.0)
    lost = replace(of_epoch(first[1], 1).recording, rank=0, events=(Event(7.0, "lost rank 0"),))
    now = JobView("cafe", (replace(first[1], recording=lost),), (replace(first[0], alive=False),))
    for at in (2.0, 3.0):
        history.see(now, at)
    assert told(history)[1:] == [
        ("epoch", "epoch 1 began, with 4 ranks"),
        ("died", "rank 0 on host-a has ended without leaving"),
        ("event", "rank 1, now rank 0: lost rank 0"),
    ]
    strangers = JobView("cafe", now.ranks, (replace(a_rank(2, began=3.0), alive=False),))
    history.see(strangers, 4.0)  # it was never seen alive
    assert len(history.entries) == 4


def test_leaving_differs_from_dying() -> None:
    history = History()
    history.see(a_job(a_rank(0), a_rank(1), a_rank(2)), 1.0)
    history.see(a_job(a_rank(0), a_rank(1, left=9.0)), 2.0)
    assert told(history)[1:] == [("left", "rank 1 on host-a has left"), ("gone", "rank 2 on host-a has gone")]


def test_events_are_told_once_at_their_time_and_few_are_kept() -> None:
    history = History()
    for _ in range(2):
        history.see(a_job(a_rank(0, events=[Event(7.0, "the group broke")])), 1.0)
    assert told(history)[1:] == [("event", "rank 0: the group broke")]
    assert history.entries[-1].at == 1e9 + 7.0
    history.see(a_job(a_rank(0, events=[Event(float(at), f"{at}") for at in range(3 * MOST)])), 1.0)
    assert len(history.entries) == MOST
