"""What is encoded off the loop: also large arrays inside dataclasses."""

from __future__ import annotations

import asyncio
import datetime
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.group import ProcessGroup
from aiodist.group.services import codec
from aiodist.group.services.codec import encode, encoded, is_bulky
from aiodist.net.wire import objects
from aiodist.net.wire.objects import LARGE
from aiodist.testing import run_cluster
from tests.programs.values import Pair, visits


@dataclass
class Batch:
    data: np.ndarray[Any, Any]
    inner: list[Batch] = field(default_factory=list)


def test_what_is_bulky() -> None:
    small, large = np.zeros(3), np.zeros(LARGE // 8)
    for value in [
        large,
        [large],
        {"a": (large,)},
        Batch(large),
        [Batch(small, [Batch(large)])],
        bytes(LARGE),
    ]:
        assert is_bulky(value)
    for value in [small, [1, "a", None], Batch(small, [Batch(small)]), {}, 3]:
        assert not is_bulky(value)
    for many in (
        list(range(5000)),
        set(range(5000)),
        {n: n for n in range(5000)},
        ["x" * 4096] * 300,
        [small] * 4100,
    ):
        assert is_bulky(many)


def test_a_look_at_a_value_ends() -> None:
    """Whatever holds itself, or the same parts again and again, is large."""
    cycle = Pair()
    cycle.left = cycle
    doubled = Pair()
    for _ in range(60):
        doubled = Pair(doubled, doubled)
    endless: list[Any] = []
    endless.append(endless)
    with visits(5000):
        assert is_bulky(cycle)
    with visits(5000):
        assert is_bulky([{"a": (doubled,)}])
    assert is_bulky(endless)


RANDOM = bytes(np.random.default_rng(3).integers(0, 256, 200_000, np.uint8))
SLOW: dict[str, Any] = {
    "lists": [[]] * 20_000,
    "dicts": [{}] * 20_000,
    "numbers": list(range(300_000)),
    "array": np.zeros(LARGE),
    "text": "é" * 600_000,
    "scalars": [np.int8(number % 100) for number in range(2000)],
    "large integers": [1 << (64 + number % 2) for number in range(2000)],
    "complex": [1j] * 2000,
    "arrays": [np.zeros(3)] * 2000,
    "many axes": [np.zeros((1,) * 20)] * 2000,
    "axes of 256 bytes": [np.zeros((1,) * 32)] * 2000,
    "tuples": [()] * 2000,
    "dates": [datetime.date(2026, 1, 1)] * 2000,
    "times": [datetime.datetime(2026, 1, 1)] * 2000,
    "behind bytes": [RANDOM, [np.int8(1)] * 2000],
    "keys": {str(number): number for number in range(20_000)},
    "records": [{"a": 1, "b": 2}] * 6000,
}
QUICK: list[Any] = [
    [[]] * 2000,
    np.zeros(20_000),
    "x" * 200_000,
    [RANDOM],
    {"a": 1.5, "b": RANDOM, "c": "é" * 50_000, "d": [RANDOM]},
    [np.zeros(5000)] * 20,
    [number / 7 for number in range(1000)],
]


@pytest.mark.parametrize("many", SLOW.values(), ids=SLOW)
async def test_what_is_slow_to_decode_goes_to_a_thread(many: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting(data: bytes) -> Any:
        threads.append(threading.current_thread())
        return decode(data)

    decode = objects.decode
    monkeypatch.setattr(objects, "decode", noting)
    for value, on_the_loop in ((many, False), *((quick, True) for quick in QUICK)):
        threads.clear()
        payload = encode(value)
        assert len(await codec.decoded(payload)) == len(value)
        assert [thread is threading.main_thread() for thread in threads] == [on_the_loop]


@pytest.mark.parametrize("times", [15, 60])
async def test_what_is_held_too_often_is_found_in_a_thread(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noting(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(value)

    monkeypatch.setattr(codec, "encode", noting)
    doubled = Pair()
    for _ in range(times):
        doubled = Pair(doubled, doubled)
    with visits(), pytest.raises(UsageError, match="holds the same parts so often"):
        await encoded(doubled)
    assert threading.main_thread() not in threads


async def test_an_array_in_a_dataclass_is_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(value)

    monkeypatch.setattr(codec, "encode", noting)
    batch = Batch(np.arange(LARGE // 8))
    back = objects.decode(await encoded(batch))
    assert np.array_equal(back["data"], batch.data)
    await encoded(Batch(np.arange(3)))
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


def test_what_cannot_travel_says_what_can() -> None:
    with pytest.raises(
        UsageError, match=r"obj\['id'\] is of type uuid.UUID, .* dataclasses, NumPy"
    ) as refused:
        encode({"id": uuid.UUID(int=7)})
    assert "pickle" not in str(refused.value)
    with pytest.raises(UsageError, match="over 100 deep"):
        deep: list[Any] = []
        for _ in range(200):
            deep = [deep]
        encode(deep)


@dataclass
class Ends:
    """Its field ends an iteration."""

    left: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "left":
            raise StopIteration
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("beside", [b"", bytes(LARGE)], ids=["on the loop", "in a thread"])
def test_a_field_that_ends_an_iteration_is_refused(beside: bytes) -> None:
    """The future of a thread cannot hold it, so the call would wait for ever."""

    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(UsageError, match="a Ends cannot be sent: StopIteration"):
            await asyncio.wait_for(pg.call(0, "echo", [Ends(), beside]), 20)

    asyncio.run(run_cluster(1, main))
