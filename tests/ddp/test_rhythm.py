"""When fragments are exchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError
from aiodist.ddp.rhythm import Rhythm, parts


@given(st.integers(1, 6), st.integers(1, 9), st.data())
def test_every_fragment_once_in_sync_every_steps_and_one_at_a_time(
    fragments: int, period: int, data: st.DataObject
) -> None:
    rhythm = Rhythm(fragments * period, fragments, data.draw(st.integers(0, period - 1)))
    rounds = 4
    steps = range(1, rounds * rhythm.sync_every + rhythm.delay + 1)
    begun = [(step, one) for step in steps if (one := rhythm.begins(step)) is not None]
    applied = [(step, one) for step in steps if (one := rhythm.applies(step)) is not None]
    assert [one for _, one in begun][: rounds * fragments] == list(range(fragments)) * rounds
    assert applied == [(step + rhythm.delay, one) for step, one in begun if step + rhythm.delay in steps]
    events = sorted([(step, 1) for step, _ in applied] + [(step, 0) for step, _ in begun])
    open_now = 0
    for _, kind in events:
        open_now += 1 if kind == 0 else -1
        assert 0 <= open_now <= 1


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ((10, 3, 0), "not a multiple of 3 fragments"),
        ((10, 2, 5), "less than the 5 steps"),
        ((10, 2, -1), "delay=-1"),
    ],
)
def test_numbers_that_do_not_fit(numbers: tuple[int, int, int], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Rhythm(*numbers)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.data())
def test_arrays_are_dealt_out_evenly(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    dealt = parts(sizes, count)
    assert sorted(index for part in dealt for index in part) == list(range(len(sizes)))
    assert len(dealt) == count and all(dealt) and all(part == sorted(part) for part in dealt)
    loads = [sum(sizes[index] for index in part) for part in dealt]
    assert max(loads) - min(loads) <= max(sizes)


def test_more_fragments_than_arrays() -> None:
    with pytest.raises(UsageError, match="2 arrays cannot be dealt out to 3 fragments"):
        parts([1, 2], 3)
