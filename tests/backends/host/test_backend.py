"""What a host backend does once its group has broken: nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist import _engine
from aiodist.backends.base import Array, Operation
from aiodist.backends.host import wired
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.host.engine import HostEngine
from aiodist.base.types import Call, Kind, ReduceOp
from aiodist.transport import MemoryEndpoint, MemoryNetwork

SIZE = 3


def nothing(*args: object) -> None:
    """Hear it, and do nothing."""


class Member:
    """One rank's backend, over memory links; it breaks as a group does, in the call."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        loop = asyncio.get_running_loop()
        self.endpoint = MemoryEndpoint(network, rank)
        self.engine = HostEngine(self.endpoint, loop, nothing, nothing, inline=True)
        self.broken: list[str] = []
        self.heard: list[int] = []
        reports: Any = SimpleNamespace(broken=self._break)
        self.backend = HostBackend(self.engine.resources, self.engine, 77, range(SIZE), reports)
        self.endpoint.observer = self  # type: ignore[assignment]

    def submit(self, kind: Kind, array: Array, part: Array | None, reduce: ReduceOp | None = None) -> None:
        work: Any = SimpleNamespace(_driven_by=nothing, _finish=nothing)
        call = Call(kind, 0, array.dtype, array.shape, reduce, 0 if kind is Kind.broadcast else -1)
        self.backend.submit(Operation(call, work, array, part, None, nothing))

    def arrived(self, rank: int, *rest: object) -> None:
        self.heard.append(rank)

    def _break(self, error: Exception) -> None:
        self.broken.append(str(error))
        self.backend.abort(lambda: self.broken.append("released"))


@pytest.fixture
async def members() -> Any:
    network = MemoryNetwork()
    made = [Member(network, rank) for rank in range(SIZE)]
    yield made
    for member in made:
        member.endpoint.kill()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_begun_after_the_end(members: list[Member]) -> None:
    """A hierarchy's operation that begins two others may break the group with the first."""
    root = members[0]
    root.backend.abort(nothing)
    root.submit(Kind.broadcast, array := np.arange(3), array)
    await turns()
    assert [member.heard for member in members] == [[], [], []]


async def test_what_breaks_while_receives_are_posted_sends_nothing(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **named: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(_engine, "compiled", None)  # it reduces halves fast enough for the loop
    monkeypatch.setattr(wired, "reduce_into", fail)
    monkeypatch.setattr(MemoryEndpoint, "incoming", lambda self, rank: Arrived())
    given = (np.arange(SIZE * 200_000) % 1000).astype(np.float16)
    members[1].submit(Kind.reduce_scatter, given, given[:200_000].copy(), ReduceOp.SUM)
    await turns()
    assert "no room" in members[1].broken[0]
    assert members[1].broken[1:] == ["released"]
    assert members[2].heard == []


async def test_no_array_is_kept_once_nothing_touches_it(members: list[Member]) -> None:
    tensor = np.arange(300_000.0)
    kept = weakref.ref(tensor)
    members[0].submit(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    del tensor
    gc.collect()
    assert kept() is not None
    members[0]._break(RuntimeError("enough"))
    assert members[0].broken == ["enough", "released"]
    await turns()
    gc.collect()
    assert kept() is None


async def test_arrays_are_kept_until_a_thread_has_let_go(members: list[Member]) -> None:
    jobs: list[Any] = []
    backend = members[0].backend

    def in_thread(cost: float, job: Any, done: Any, failed: Any) -> bool:
        jobs.append((job, done))
        return False

    backend.resources.offload.run = in_thread  # type: ignore[method-assign,assignment]
    tensor = np.arange(600_000.0)[::2]  # strided: staged first
    kept = weakref.ref(tensor)
    members[0].submit(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    del tensor
    members[0]._break(RuntimeError("enough"))
    assert members[0].broken == ["enough"]
    assert backend._running
    job, done = jobs.pop()
    job()
    done()
    assert members[0].broken == ["enough", "released"]
    assert not backend._running
    del job, done
    await turns()
    gc.collect()
    assert kept() is None


class Arrived:
    """A channel on which everything has come before it was asked for."""

    def recv(self, *args: object) -> bool:
        return True
