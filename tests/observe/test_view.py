"""Views as plain values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aiodist.base.errors import WireError
from aiodist.observe import RankView, Stacks
from aiodist.observe.recorder.reading import Vitals
from aiodist.observe.view import Doing, jobs
from tests.observe.made import a_rank, a_record


@pytest.mark.parametrize("stacks", [None, Stacks(("a",), ("b", "c"), True, ("d",))])
def test_a_view_comes_back_from_json(stacks: Stacks | None) -> None:
    view = a_rank(1, stacks=stacks)
    again = RankView.from_json(json.loads(json.dumps(view.to_json())))
    assert again.stacks == stacks
    assert again.to_json() == view.to_json()


def test_stacks_that_are_none() -> None:
    with pytest.raises(WireError, match="this is no rank"):
        RankView.from_json({**a_rank().to_json(), "stacks": {"thread": []}})


@pytest.mark.parametrize(
    ("more", "doing"),
    [
        ({}, Doing.running),
        ({"vitals": Vitals(19.0, 1, 17.0)}, Doing.blocked),
        ({"vitals": Vitals(17.0, 1, 17.0)}, Doing.held),
        ({"vitals": Vitals()}, Doing.held),  # it has written nothing since it began
        ({"vitals": Vitals(), "began": 19.0}, Doing.running),
        ({"vitals": Vitals(19.0, 1, 0.0)}, Doing.running),  # no loop is watched yet
        ({"pending": [a_record()]}, Doing.waiting),
        ({"pending": [a_record()], "stopped": True}, Doing.stopped),
        ({"stopped": True, "alive": False}, Doing.dead),
        ({"left": 19.0, "alive": False}, Doing.left),
    ],
)
def test_what_a_rank_does(more: dict[str, Any], doing: Doing) -> None:
    view = a_rank(**more)
    assert view.doing is doing
    assert view.since >= 0.0


@pytest.mark.parametrize(
    ("beat", "doing"), [(1.5, Doing.running), (0.25, Doing.blocked), ("x", Doing.blocked)]
)
def test_a_loop_that_beats_rarely_is_not_blocked_so_soon(beat: object, doing: Doing) -> None:
    """AIODIST_HEARTBEAT says how often it does."""
    assert a_rank(vitals=Vitals(20.0, 1, 15.0), about={"heartbeat": beat}).doing is doing


def test_jobs_are_told_apart_and_the_dead_of_earlier_epochs_are_no_ranks() -> None:
    ranks = [
        a_rank(0, epoch=1),
        a_rank(1, epoch=0, alive=False),
        a_rank(2, epoch=0),
        replace(a_rank(0, began=5.0), key="later"),
        a_rank(2, epoch=1, began=3.0, alive=False),
    ]
    first, second = jobs(ranks)
    assert (first.key, [view.rank for view in first.ranks]) == ("later", [0])
    assert [(view.rank, view.alive) for view in second.ranks] == [(0, True), (2, True)]  # the one that lives
