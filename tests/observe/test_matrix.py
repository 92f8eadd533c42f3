"""Bytes between ranks: what calls imply, and what TCP has counted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aiodist.observe.matrix import matrix
from aiodist.observe.recorder.reading import Group, Link, Sum
from aiodist.observe.view import JobView, RankView
from tests.observe.made import WORLD, a_job
from tests.observe.made import a_rank as at_twenty

a_rank = partial(at_twenty, now=10.0, began=0.0)


def a_sum(op: str, nbytes: int, uses: int = 1, root: int = -1, group: Group | None = WORLD) -> Sum:
    return Sum(group, op, "uint8", (nbytes,), "", root, 0, nbytes, uses, 0, 0, 0.0, 0.0, nbytes * uses)


def job(*sums: Sum) -> JobView:
    """All four ranks have issued these."""
    return a_job(*(a_rank(rank, sums=sums) for rank in range(4)))


@pytest.mark.parametrize(
    ("one", "row0", "row2"),
    [
        (a_sum("all_reduce", 400, 3), [0, 600, 600, 600], [600, 600, 0, 600]),
        (a_sum("reduce_scatter", 400), [0, 100, 100, 100], [100, 100, 0, 100]),
        (a_sum("all_gather", 100), [0, 100, 100, 100], [100, 100, 0, 100]),
        (a_sum("all_to_all", 400), [0, 100, 100, 100], [100, 100, 0, 100]),
        (a_sum("broadcast", 400, root=2), [0, 0, 0, 0], [400, 400, 0, 400]),
        (a_sum("reduce", 400, root=2), [0, 0, 400, 0], [0, 0, 0, 0]),
        (a_sum("gather", 100, root=2), [0, 0, 100, 0], [0, 0, 0, 0]),
        (a_sum("scatter", 100, root=2), [0, 0, 0, 0], [100, 100, 0, 100]),
        (a_sum("barrier", 0), [0, 0, 0, 0], [0, 0, 0, 0]),
        (a_sum("unheard_of", 100), [0, 0, 0, 0], [0, 0, 0, 0]),
        (a_sum("all_reduce", 100, group=None), [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_what_calls_imply(one: Sum, row0: list[int], row2: list[int]) -> None:
    found = matrix(job(one))
    assert found.implied[0].tolist() == row0
    assert found.implied[2].tolist() == row2


def test_a_message_counts_where_it_is_sent_and_once() -> None:
    pair = Group("pair", 0, (3, 1))
    views = [
        a_rank(3, sums=[a_sum("send", 50, 4, root=1, group=pair)]),
        a_rank(1, sums=[a_sum("recv", 50, 4, root=0, group=pair)]),
    ]
    found = matrix(a_job(*sorted(views, key=lambda view: view.rank)))
    assert found.ranks == (1, 3)
    assert found.implied.tolist() == [[0, 0], [200, 0]]


def with_links(rank: int, *links: Link) -> RankView:
    view = a_rank(rank)
    return replace(view, recording=replace(view.recording, links=links))


def test_tcp_counts_what_its_peer_has_acknowledged() -> None:
    found = matrix(
        a_job(
            with_links(0, Link(1, 7, 0.0, 0.0, 0), Link(1, 5, 0.0, 0.0, 0), Link(9, 1, 0.0, 0.0, 0)),
            a_rank(1),
        )
    )
    assert found.counted.tolist() == [[0, 12], [0, 0]]
    assert not found.implied.any()


def test_many_ranks_are_added_up() -> None:
    count = 200
    world = Group("world", 0, range(count))
    found = matrix(
        a_job(*(a_rank(rank, sums=[a_sum("all_gather", 1, group=world)]) for rank in range(count)))
    )
    told = found.to_json(64)
    assert told["each"] == 4 and told["labels"][:2] == ["0–3", "4–7"] and len(told["labels"]) == 50
    assert told["implied"][0][:2] == [12.0, 16.0]
    assert np.sum(told["implied"]) == count * (count - 1)
