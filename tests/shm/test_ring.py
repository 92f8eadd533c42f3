"""A ring gives what was appended, in order, whatever its length and whenever it is told what was taken."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import WireError
from aiodist.shm.ring import RING, RING_BYTES, Consumer, Producer

AT = 128


def pair() -> tuple[Producer, Consumer, memoryview]:
    view = memoryview(bytearray(b"\xaa" * (AT + RING_BYTES)))
    return Producer(view, AT), Consumer(view.toreadonly(), AT), view


def record(number: int, size: int) -> tuple[bytes, bytes]:
    """A header of 16 bytes that says the payload's size, and a payload."""
    header = bytes([1 + number % 255]) + size.to_bytes(7, "little") + number.to_bytes(8, "little")
    return header, bytes((number + at * 7) % 256 for at in range(size))


def take(consumer: Consumer) -> bytes:
    memory = consumer.first()
    size = 16 + int.from_bytes(memory[1:8], "little")
    taken = bytes(memory[:size])
    consumer.took(size)
    return taken


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.sampled_from([0, 1, 7, 8, 9, 100, 5000, 8192, RING // 2 - 16])),
            st.tuples(st.just("take"), st.integers(1, 5)),
            st.tuples(st.just("tell"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_what_is_taken_is_what_was_appended(steps: list[tuple[str, int]]) -> None:
    producer, consumer, _ = pair()
    held: deque[bytes] = deque()
    told = number = 0
    for step, value in steps:
        if step == "append":
            header, payload = record(number, value)
            if producer.append(header, memoryview(payload)):
                held.append(header + payload)
                number += 1
            else:
                assert consumer.taken - told or held  # one that is empty takes any, wherever it stands
        elif step == "take":
            for _ in range(value):
                if consumer.waiting():
                    assert take(consumer) == held.popleft()
        elif consumer.taken > told:
            told = consumer.taken
            producer.took(told)
        assert consumer.waiting() == bool(held)
    while held:
        assert take(consumer) == held.popleft()
    assert not consumer.waiting()


def test_what_is_taken_and_not_told_is_not_overwritten() -> None:
    producer, consumer, _ = pair()
    header, payload = record(1, 8192 - 16)
    for _ in range(RING // 8192):
        assert producer.append(header, memoryview(payload))
    assert not producer.append(header, memoryview(payload))
    first = consumer.first()
    consumer.took(8192)
    assert not producer.append(header, memoryview(payload))
    assert bytes(first[:8192]) == header + payload
    producer.took(8192)
    assert producer.append(header, memoryview(payload))


@pytest.mark.parametrize("total", [0, -8, 8, 1 << 62])
def test_more_cannot_be_taken_than_there_is_nor_less_than_before(total: int) -> None:
    producer, _, _ = pair()
    producer.append(*map(memoryview, record(1, 8)))  # type: ignore[arg-type]
    producer.took(24)
    with pytest.raises(WireError, match="of a ring taken, after 24, of 24"):
        producer.took(24 + total)


@pytest.mark.parametrize("head", [4, RING + 8, 1 << 63, -8 % 2**64])
def test_a_head_that_cannot_be_is_refused(head: int) -> None:
    _, consumer, view = pair()
    view[AT : AT + 8] = head.to_bytes(8, "little")
    with pytest.raises(WireError, match="a ring whose head is"):
        consumer.first()


def test_nothing_is_left_of_a_ring_that_is_only_skipped() -> None:
    _, consumer, view = pair()
    view[AT + 64] = 0
    view[AT : AT + 8] = RING.to_bytes(8, "little")
    with pytest.raises(WireError, match="a ring whose head is 0 bytes ahead"):
        consumer.first()
