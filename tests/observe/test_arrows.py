"""Which operation led to which; after correction of the clocks nothing runs backwards that need not."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.arrows import FAR, LEAST, Arrow, collectives, corrections, drawn_out, messages
from aiodist.observe.recorder.reading import Group
from aiodist.observe.spans import Span, spans
from tests.observe.made import a_rank, a_record

PAIR = Group("pair", 0, (5, 7))


def a_span(rank: int, start: float, end: float, state: str = "ended") -> Span:
    return Span(rank, a_record(), start, end, 0.0, state)


def test_peers_are_members_of_the_group_and_tags_apart() -> None:
    ranks = [
        a_rank(5, [a_record("send", 0, 10.0, group=PAIR, root=1, tag=tag) for tag in (1, 2)]),
        a_rank(7, [a_record("recv", 0, 11.0, group=PAIR, root=0, tag=2, pending=11.0, ended=12.0)]),
    ]
    (arrow,) = messages(ranks, [span for rank in ranks for span in spans(rank)])
    assert (arrow.tail.rank, arrow.head.rank, arrow.tail.record.tag) == (5, 7, 2)


def test_a_receive_that_pends_or_is_from_nobody_has_no_arrow() -> None:
    waiting = a_record("recv", 0, 11.0, group=PAIR, root=0, pending=11.0)
    ranks = [
        a_rank(5, [a_record("send", 0, 10.0, group=PAIR, root=1)]),
        a_rank(7, [waiting], pending=[waiting]),
    ]
    assert messages(ranks, [span for rank in ranks for span in spans(rank)]) == []
    strange = [a_rank(5, [a_record("send", 0, 10.0, group=group, root=9) for group in (PAIR, None)])]
    assert messages(strange, spans(strange[0])) == []


def test_of_a_collective_the_last_to_come_is_the_tail_if_all_are_known() -> None:
    ranks = [a_rank(r, [a_record(issued=10.0 + r, ended=20.0, group=PAIR)]) for r in (5, 7)]
    found = [span for rank in ranks for span in spans(rank)]
    (arrow,) = collectives(found)
    assert (arrow.tail.rank, arrow.head.rank) == (7, 5)
    assert collectives(found[:1]) == []


def test_what_ended_unseen_is_drawn_longer_but_not_far() -> None:
    tail = a_span(0, 10.0, 10.5)
    near, far, known = a_span(1, 9.5, 9.6, "brief"), a_span(1, 8.0, 8.1, "brief"), a_span(1, 9.5, 9.6)
    arrows = [Arrow(tail, head, "message") for head in (near, far, known)]
    drawn_out(arrows)
    assert near.end == 10.0 + LEAST and not arrows[0].backwards
    assert far.end == 8.1 and 10.0 - far.end > FAR
    assert known.end == 9.6


clocks = st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4)
pairs = st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 100), st.floats(1e-5, 1))


@given(clocks, st.lists(pairs, max_size=20))
def test_where_the_bounds_hold_all_run_forwards(
    wrong: list[float], pairs: list[tuple[int, int, float, float]]
) -> None:
    """Clocks are wrong by at most what is said: so a correction exists, and one is found."""
    errors: dict[Hashable, float] = {clock: abs(by) for clock, by in enumerate(wrong)}
    arrows = []
    for one, other, at, takes in pairs:
        tail = a_span(one, at + wrong[one], at + wrong[one] + 0.1)
        head = a_span(other, at - 1 + wrong[other], at + takes + wrong[other])
        arrows.append(Arrow(tail, head, "message"))
    found = corrections(arrows, lambda rank: rank, errors)
    assert all(abs(by) <= errors[clock] + 1e-9 for clock, by in found.items())
    for arrow in arrows:
        arrow.tail.move(found[arrow.tail.rank])
        if arrow.head is not arrow.tail:
            arrow.head.move(found[arrow.head.rank])
        assert not arrow.backwards
