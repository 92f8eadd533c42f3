"""What a watch keeps for its reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.rendezvous import Watch, WatchEvent
from aiodist.rendezvous import watch as watch_module


def read(watch: Watch) -> list[WatchEvent]:
    """All that waits, without waiting."""
    found = []
    while watch._events:
        try:
            watch.__anext__().send(None)
        except StopIteration as stop:
            found.append(stop.value)
    return found


def test_the_state_is_complete_when_a_piece_does_not_end_in_none() -> None:
    watch = Watch(lambda: None)
    watch.feed([["a", b"1", 1], None])
    assert read(watch) == []
    watch.feed([["b", b"2", 2]])
    watch.feed([["a", None, 3]])
    assert read(watch) == [WatchEvent("a", b"1"), WatchEvent("b", b"2"), WatchEvent("a", None)]


def test_after_a_restart_only_what_differs_is_told() -> None:
    watch = Watch(lambda: None)
    watch.feed([["a", b"1", 1], ["b", b"2", 2]])
    read(watch)
    watch.restart()
    watch.feed([["b", b"2", 2], None])
    watch.restart()  # broken off again, in the middle
    watch.feed([["b", b"3", 5], None])
    watch.feed([["c", b"4", 6]])
    assert read(watch) == [WatchEvent("a", None), WatchEvent("b", b"3"), WatchEvent("c", b"4")]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.binary(max_size=1)), st.booleans()))
)
def test_a_slow_reader_ends_up_with_the_same_keys(changes: list[tuple[str, bytes | None, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "MANY", 4)
        watch = Watch(lambda: None)
        watch.feed([])
        exist: dict[str, bytes] = {}
        seen: dict[str, bytes] = {}

        def look() -> None:
            for key, value in read(watch):
                if value is None:
                    del seen[key]  # what it never saw is not told to be gone
                else:
                    seen[key] = value

        for revision, (key, value, reads) in enumerate(changes):
            if value is None and key not in exist:
                continue
            watch.feed([[key, value, revision]])
            if value is None:
                del exist[key]
            else:
                exist[key] = value
            assert len(watch._events) <= 2 * 4
            if reads:
                look()
                assert seen == exist
        look()
        assert seen == exist
