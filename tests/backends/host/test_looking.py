"""A receive that looks takes the next frame of the ring if it is its message, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.host.looking import Looking
from aiodist.transport import EAGER_MESSAGE
from aiodist.types import message_signature
from aiodist.wire.frame import Type, pack

CONTEXT, SOURCE, TAG, NUMBER = 77, 3, 5, 9
INT64, BYTE = np.dtype(np.int64), np.dtype(np.uint8)
DATA = np.arange(4) + 100


class Group:
    """What a receive looks at, and what is told of it."""

    def __init__(self) -> None:
        self.record: memoryview | None = None
        self.took_bytes: list[int] = []
        self.posted = 0
        self.handed_back: list[Any] = []
        self.results: list[Any] = []
        self.driver: Any = None
        self.take_back: Any = None
        self.post: Any = None
        self.rests = False

    # Of `Messages`.
    def look_first(self, post: Any) -> None:
        self.post = post

    def settle(self) -> None:
        if self.post is not None:
            post, self.post = self.post, None
            post()

    def quiet(self, tag: int) -> bool:
        return True

    def found(self, source: int, tag: int) -> None:
        self.post = None

    def hand_back(self, claim: Any) -> None:
        self.handed_back.append(claim)

    # Of `Incoming`.
    def awake(self) -> None:
        pass

    def peek(self) -> memoryview | None:
        return self.record

    def took(self, context: int, nbytes: int) -> None:
        self.took_bytes.append(nbytes)

    # Of `Poller`.
    def until(self, look: Any) -> bool:
        look()
        return not self.rests

    # Of `Work`.
    @property
    def _driver(self) -> Any:
        return self.driver

    def _driven_by(self, driver: Any) -> None:
        self.driver = driver

    def _taken_back_by(self, take_back: Any) -> None:
        self.take_back = take_back

    def _finish(self, result: Any) -> None:
        self.driver = None
        self.results.append(result)

    def _fail(self, error: BaseException) -> None:
        self._finish(error)

    def looking(self, target: Any, convert: Any = None) -> Looking:
        group: Any = self
        nbytes = 0 if target is None else target.nbytes
        signature = b"" if target is None else message_signature(target.dtype, target.size, NUMBER)
        header = pack(Type.EAGER, CONTEXT, 1 + TAG, NUMBER, nbytes=nbytes, total=nbytes, signature=signature)

        def post(operation: Any) -> None:
            self.posted += 1

        return Looking(
            *(group, group, group, CONTEXT, SOURCE, TAG, NUMBER, header, group, target, convert),
            lambda: group,
            post,
        )


def frame(data: Any = DATA, **fields: Any) -> bytes:
    """An eager frame with its payload; fields that are not the message's."""
    key = {"context": CONTEXT, "stream": 1 + TAG, "seq": NUMBER} | fields
    nbytes = key.pop("nbytes", data.nbytes)
    signature = key.pop("signature", message_signature(data.dtype, data.size, NUMBER))
    total = key.pop("total", nbytes)
    header = pack(Type.EAGER, **key, nbytes=nbytes, total=total, signature=signature)
    return header + bytes(data.tobytes())


def test_the_message_is_taken_without_more() -> None:
    group, place = Group(), np.zeros(4, np.int64)
    looking = group.looking(place)
    looking.poll()
    assert (group.posted, group.results) == (0, [])
    group.record = memoryview(frame() + b"what comes next")
    looking.poll()
    assert (group.results, group.took_bytes, group.posted) == ([SOURCE], [32], 0)
    assert (place == DATA).all()


def test_a_message_of_any_size_is_converted() -> None:
    group = Group()
    data = np.arange(200, dtype=np.uint8)
    group.record = memoryview(frame(data))
    group.looking(None, lambda result: (result[0], result[1].tolist())).poll()
    assert group.results == [(SOURCE, data.tolist())]


def test_what_conversion_raises_fails_the_receive_alone() -> None:
    group = Group()
    group.record = memoryview(frame(np.zeros(3, np.uint8)))
    group.looking(None, lambda result: 1 // 0).poll()
    assert isinstance(group.results[0], ZeroDivisionError)
    assert group.took_bytes == [3]


NOT_IT = {
    "another group's": frame(context=1),
    "another tag's": frame(stream=TAG),
    "another number's": frame(seq=NUMBER + 1),
    "another dtype's": frame(DATA.astype(np.float64)),
    "another size's": frame(np.arange(5)),
    "without its payload": frame()[:-32],
    "without some of it": frame()[:-1],
    "of another type": pack(Type.OFFER, CONTEXT, 1 + TAG, NUMBER, total=32),
    "short": frame()[:95],
}


@pytest.mark.parametrize("name", NOT_IT)
def test_another_frame_has_it_posted(name: str) -> None:
    group, place = Group(), np.zeros(4, np.int64)
    group.record = memoryview(NOT_IT[name])
    group.looking(place).poll()
    assert (group.posted, group.results, group.took_bytes) == (1, [], [])
    assert not place.any()


@pytest.mark.parametrize(
    "raw",
    [
        frame(np.zeros(9, np.uint8), total=10),
        frame(np.zeros(9, np.uint8), offset=1),
        frame(np.zeros(9, np.uint8), word=1),
        frame(np.zeros(9, np.uint8))[:-1],
        frame(np.zeros(EAGER_MESSAGE + 1, np.uint8)),
        frame(np.zeros(9, np.int8)),
        frame(np.zeros(0, np.uint8)),
    ],
)
def test_another_frame_has_one_of_any_size_posted(raw: bytes) -> None:
    group = Group()
    group.record = memoryview(raw)
    group.looking(None, lambda result: result).poll()
    assert (group.posted, group.results, group.took_bytes) == (1, [], [])


def test_one_that_is_polled_in_vain_is_posted() -> None:
    group = Group()
    looking = group.looking(np.zeros(4, np.int64))
    assert not looking.polled
    for _ in range(4):
        looking.poll()
        assert (looking.polled, group.posted) == (True, 0)
    looking.poll()
    assert (looking.polled, group.posted) == (False, 1)


def test_one_that_finds_nothing_where_polling_rests_is_posted_at_once() -> None:
    group = Group()
    group.rests = True
    group.looking(np.zeros(4, np.int64)).poll()
    assert group.posted == 1


def test_what_it_has_goes_back_when_its_await_is_cancelled() -> None:
    group, place = Group(), np.zeros(4, np.int64)
    looking = group.looking(place)
    group.record = memoryview(frame())
    looking.poll()
    group.take_back()
    (claim,) = group.handed_back
    assert (claim.source, claim.tag, claim.number, claim.users) == (SOURCE, TAG, NUMBER, True)
    assert (claim.place == DATA).all()
    assert claim.signature == message_signature(INT64, 4, NUMBER)
