"""Messages that wait for a torn link: the latest floods and what comes since, in order, within bounds."""

from __future__ import annotations

from aiodist.group.control.resend_buffer import LATEST, WAITING, Unsaid


def test_the_latest_floods_are_said_again_and_messages_for_one_are_not() -> None:
    unsaid = Unsaid()
    for neighbour in (1, 2):
        unsaid.note(neighbour, b"to all", flood=True)
    unsaid.note(1, b"to 1", flood=False)
    unsaid.torn(1)
    unsaid.note(2, b"to 2", flood=False)
    unsaid.note(1, b"since", flood=False)
    unsaid.torn(1)  # told twice
    assert unsaid.take(1) == [b"to all", b"since"]
    assert unsaid.take(1) == [] == unsaid.take(2)
    unsaid.note(1, b"later", flood=False)
    assert unsaid.take(1) == []


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    unsaid = Unsaid()
    floods = [bytes([number]) * 1000 for number in range(200)]
    for flood in floods:
        unsaid.note(1, flood, flood=True)
    unsaid.torn(1)
    again = unsaid.take(1)
    assert again == floods[-len(again) :] and LATEST - 1000 < sum(map(len, again)) <= LATEST
    unsaid.torn(1)
    since = [number.to_bytes(2, "little") * 500 for number in range(1000)]
    for message in since:
        unsaid.note(1, message, flood=False)
    waited = unsaid.take(1)
    assert waited == since[-len(waited) :] and WAITING - 1000 < sum(map(len, waited)) <= WAITING
    unsaid.torn(1)
    unsaid.note(1, b"x" * (WAITING + 1), flood=False)
    assert [len(data) for data in unsaid.take(1)] == [WAITING + 1]
