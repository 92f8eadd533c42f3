"""Which connection is named as slow: one far slower than the others, and much in use."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.links import LEAST, find_slow_link
from aiodist.observe.recorder.reading import Link
from aiodist.observe.view import JobView, RankView
from tests.observe.made import a_job, a_rank

MIB = 1 << 20


def linked(rank: int, *links: Link) -> RankView:
    view = a_rank(rank, now=101.0)
    return replace(view, recording=replace(view.recording, links=links))


def test_the_slow_one_is_named() -> None:
    fast = [linked(rank, Link(rank + 1, 100 * MIB, 1.0, 0.001, 0)) for rank in range(3)]
    slow = linked(3, Link(0, 100 * MIB, 50.0, 0.08, 9))
    found = find_slow_link(a_job(*fast, slow))
    assert found is not None
    assert (found.rank, found.peer, found.rate, found.usual) == (3, 0, 2 * MIB, 100 * MIB)
    assert (found.busy, found.rtt) == (0.5, 0.08)


def test_with_nothing_to_compare_it_with_or_too_little_nothing_is_said() -> None:
    slow = Link(0, 100 * MIB, 50.0, 0.08, 9)
    assert find_slow_link(a_job(linked(1, slow))) is None
    assert find_slow_link(a_job(linked(1, slow), linked(2, Link(0, LEAST - 1, 0.001, 0.0, 0)))) is None
    assert find_slow_link(a_job(linked(1, slow), linked(2))) is None
    assert find_slow_link(JobView("cafe", ())) is None


links = st.builds(
    Link, st.integers(0, 3), st.integers(0, 1 << 40), st.floats(0, 1e4), st.floats(0, 10), st.just(0)
)


@given(st.lists(st.lists(links, max_size=4), max_size=4))
def test_what_is_named_is_the_slowest_and_its_share_is_a_share(told: list[list[Link]]) -> None:
    found = find_slow_link(a_job(*(linked(rank, *some) for rank, some in enumerate(told))))
    if found is not None:
        rates = [link.sent / max(link.busy, 1e-6) for some in told for link in some if link.sent >= LEAST]
        assert found.rate == min(rates)
        assert 0.3 <= found.busy <= 1.0
        assert found.usual >= 3 * found.rate
