"""What is encoded off the loop: also large arrays inside dataclasses."""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aiodist.errors import UsageError
from aiodist.group import ProcessGroup
from aiodist.services import codec
from aiodist.services.codec import encode, encoded, is_bulky
from aiodist.testing import run_cluster
from aiodist.wire import objects
from aiodist.wire.objects import LARGE
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


SLOW = [[[]] * 20_000, [{}] * 20_000, list(range(300_000)), np.zeros(LARGE), "é" * 600_000]
QUICK = [[[]] * 2000, np.zeros(20_000), "x" * 200_000]


@pytest.mark.parametrize("many", SLOW, ids=["lists", "dicts", "numbers", "array", "text"])
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
