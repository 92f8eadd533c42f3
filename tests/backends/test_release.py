"""Buffers are the user's again when everything of this process has let go of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.release import BuffersInUse, once


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 20))
def test_it_is_free_when_the_last_holder_lets_go_and_not_before(holds: list[bool], asked_at: int) -> None:
    """Whatever is held and let go, and whenever somebody asks: told once, with nothing held."""
    release = BuffersInUse()
    held: list[int] = []
    told: list[int] = []
    steps = [*holds, *[False] * len(holds)]
    for step in range(max(len(steps), asked_at + 1)):
        if step == asked_at:
            release.when_free(lambda: told.append(len(held)))
        if told:
            break
        if step < len(steps) and steps[step]:
            held.append(step)
            release.hold()
        elif held:
            held.pop()
            release.let_go()
    assert told == [0] or held  # somebody has not let go
    assert told in ([], [0])


def test_who_asks_with_nothing_held_is_told_at_once() -> None:
    release, told = BuffersInUse(), []
    release.hold()
    release.let_go()
    release.when_free(lambda: told.append("free"))
    assert told == ["free"]
    release.hold()
    release.let_go()
    assert told == ["free"]


def test_a_library_that_says_twice_that_it_has_stopped_is_heard_once() -> None:
    called: list[int] = []
    tell = once(lambda: called.append(1))
    tell()
    tell()
    assert called == [1]
