"""One counter for all operations of a group on a rank."""

from __future__ import annotations

from aiodist.group.numbers import Numbers


def test_numbers_are_taken_one_after_the_other_also_where_some_begin_later() -> None:
    numbers = Numbers()
    assert [numbers.issue(), numbers.reserve(), numbers.issue()] == [0, 1, 2]
    assert numbers.issued == 3
    assert [numbers.begun(seq) for seq in range(4)] == [True, False, True, False]
    numbers.begin(1)
    assert numbers.begun(1)


def test_what_is_held_back_has_not_begun() -> None:
    numbers = Numbers()
    seq = numbers.issue()
    numbers.hold(seq)
    assert not numbers.begun(seq)
    numbers.begin(seq)
    assert numbers.begun(seq)


def test_a_number_that_is_passed_over_is_taken_and_not_waited_for() -> None:
    numbers = Numbers()
    reserved = numbers.reserve()
    numbers.skip(reserved)
    numbers.skip(1)
    assert numbers.begun(reserved) and numbers.begun(1)
    assert numbers.issue() == 2
    numbers.skip(0)  # long ago
    assert numbers.issued == 3


def test_a_call_of_two_steps_is_one_call_of_the_user() -> None:
    numbers = Numbers()
    calls = []
    for call in range(20_000):
        seq = numbers.issue()
        calls.append(seq)
        if call % 3 == 0:
            numbers.note_part(numbers.reserve())
            assert numbers.of_user(numbers.issued - 1) == call
        assert numbers.of_user(seq) == call
    assert [numbers.of_user(seq) for seq in calls[-5000:]] == list(range(15_000, 20_000))


def test_other_streams_are_counted_apart() -> None:
    numbers = Numbers()
    assert [
        numbers.next_of(("send", 1, 0)),
        numbers.next_of(("send", 1, 0)),
        numbers.next_of("children"),
    ] == [0, 1, 0]
    assert numbers.issued == 0
