"""A ring gives what was appended, in order, whatever its length and whenever it is taken."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist._engine.errors import RingError
from aiodist.transport.shm.ring import ADDRESS, RECORDS, WORDS_AT, address_in, area_bytes, clear

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

AT = 128
SIZE = 64 * 1024
HEADER = 16


def pair(size: int = SIZE) -> tuple[_engine.Producer, _engine.Consumer, memoryview, memoryview]:
    """Both ends, and the memories of both processes."""
    assert _engine.compiled is not None
    Producer, Consumer = _engine.compiled.Producer, _engine.compiled.Consumer  # noqa: N806
    mine, theirs = (memoryview(bytearray(b"\xaa" * (AT + area_bytes(size)))) for _ in range(2))
    for view in (mine, theirs):
        clear(view, AT)
    producer = Producer(mine, AT, size, theirs.toreadonly(), AT)
    return producer, Consumer(mine.toreadonly(), AT, size, theirs, AT), mine, theirs


def record(number: int, size: int) -> tuple[bytes, bytes]:
    """A header that says the payload's size, and a payload."""
    header = bytes([1 + number % 255]) + size.to_bytes(7, "little") + number.to_bytes(8, "little")
    return header, bytes((number + at * 7) % 256 for at in range(size))


def take(consumer: _engine.Consumer) -> bytes:
    memory = consumer.first()
    size = HEADER + int.from_bytes(memory[1:8], "little")
    taken = bytes(memory[:size])
    consumer.took(size)
    return taken


@given(
    size=st.sampled_from([256, 4096, SIZE]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, SIZE // 2 - HEADER)),
            st.tuples(st.just("take"), st.integers(1, 5)),
        ),
        max_size=60,
    ),
)
def test_what_is_taken_is_what_was_appended(size: int, steps: list[tuple[str, int]]) -> None:
    producer, consumer, _, _ = pair(size)
    held: deque[bytes] = deque()
    number = 0
    for step, value in steps:
        if step == "append":
            header, payload = record(number, value % (size // 2 - HEADER + 1))
            if producer.append(header, memoryview(payload)):
                held.append(header + payload)
                number += 1
            else:
                assert held  # one that is empty takes any, wherever it stands
        else:
            for _ in range(value):
                if consumer.waiting():
                    assert take(consumer) == held.popleft()
        assert consumer.waiting() == bool(held)
    while held:
        assert take(consumer) == held.popleft()
    assert not consumer.waiting()


def test_what_is_not_taken_is_not_overwritten() -> None:
    producer, consumer, _, _ = pair()
    header, payload = record(1, 8192 - HEADER)
    for _ in range(SIZE // 8192):
        assert producer.append(header, memoryview(payload))
    assert not producer.append(header, memoryview(payload))
    assert bytes(consumer.first()[:8192]) == header + payload
    consumer.took(8192)
    assert producer.append(header, memoryview(payload))


def test_a_producer_that_waits_for_room_says_so() -> None:
    producer, consumer, _, _ = pair()
    assert not consumer.awaited()
    producer.wait(True)
    assert consumer.awaited()
    producer.wait(False)
    assert not consumer.awaited()


@pytest.mark.parametrize("total", [0, 16, SIZE + 24, 1 << 63])
def test_more_cannot_be_taken_than_there_is_nor_less_than_before(total: int) -> None:
    producer, consumer, _, theirs = pair()
    header, payload = record(1, SIZE // 2 - HEADER)
    for _ in range(2):
        assert producer.append(header, memoryview(payload))
    consumer.first()
    consumer.took(24)
    small = record(2, 0)
    assert not producer.append(small[0] * 2, memoryview(small[1]))
    theirs[AT + 64 : AT + 72] = total.to_bytes(8, "little")
    with pytest.raises(RingError, match=f"{total} bytes of a ring taken, after 24, of {SIZE}"):
        producer.append(small[0] * 2, memoryview(small[1]))


@pytest.mark.parametrize("head", [4, SIZE + 8, 1 << 63, -8 % 2**64])
def test_a_head_that_cannot_be_is_refused(head: int) -> None:
    _, consumer, mine, _ = pair()
    mine[AT : AT + 8] = head.to_bytes(8, "little")
    with pytest.raises(RingError, match="a ring whose head is"):
        consumer.first()


def test_nothing_is_left_of_a_ring_that_is_only_skipped() -> None:
    _, consumer, mine, _ = pair()
    mine[AT + 192] = 0
    mine[AT : AT + 8] = SIZE.to_bytes(8, "little")
    with pytest.raises(RingError, match="a ring whose head is 0 bytes ahead"):
        consumer.first()


def test_python_and_the_engine_have_one_layout() -> None:
    assert _engine.compiled is not None
    assert _engine.compiled.RING_LAYOUT == (8, ADDRESS, 64, WORDS_AT, RECORDS)
    view = memoryview(bytearray(AT + area_bytes(SIZE)))
    clear(view, AT, 1 << 40)
    assert address_in(view, AT) == 1 << 40


def test_an_end_that_was_let_go_of_does_nothing() -> None:
    producer, consumer, mine, _ = pair()
    header, payload = record(1, 100)
    assert producer.append(header, payload)
    consumer.release()
    producer.release()
    assert not producer.append(header, payload)
    assert not producer.clear
    assert not (consumer.waiting() or consumer.awaited())
    consumer.took(8)
    producer.wait(True)
    with pytest.raises(ValueError, match="let go of"):
        consumer.first()
    mine.release()  # nothing holds it


def test_a_ring_has_to_lie_in_its_memory() -> None:
    assert _engine.compiled is not None
    whole = bytearray(AT + area_bytes(SIZE))
    for at, size in ((AT + 8, SIZE), (AT, SIZE + 8), (AT + 4, 4096), (1 << 62, 4096), (AT, 12), (AT, 0)):
        with pytest.raises(ValueError, match="ring"):
            _engine.compiled.Producer(whole, at, size, whole, AT)
        with pytest.raises(ValueError, match="ring"):
            _engine.compiled.Consumer(whole, at, size, whole, AT)
    with pytest.raises(BufferError):  # what it writes has to be writable
        _engine.compiled.Producer(bytes(whole), AT, SIZE, whole, AT)
    with pytest.raises(ValueError, match="a record of"):
        _engine.compiled.Producer(whole, AT, SIZE, whole, AT).append(bytes(16), bytes(SIZE // 2))
