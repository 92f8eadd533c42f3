"""The staged backend over several hosts. The place of the device is taken by the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.staged.backend import StagedBackend
from aiodist.base.types import Call, Kind, ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import few

COUNT = 100_000
"""Elements of what goes by the hierarchy: 800 kB."""


class Copier:
    """In the place of `copier.Copier`: copies at once."""

    def use(self) -> None:
        pass

    def leave(self) -> None:
        pass

    async def open(self, loop: Any) -> None:
        pass

    def marks(self, operation: Any) -> list[Any]:
        return []

    def pinned(self, count: int, dtype: Any) -> Any:
        return np.empty(count, dtype)

    def move(self, transfer: Any, to_host: bool) -> None:
        for on_device, on_host in transfer.pairs():
            np.copyto(*((on_host, on_device) if to_host else (on_device, on_host)))
        transfer.begin()
        transfer.done(None)


async def carry(pg: ProcessGroup, kind: Kind, source: Any, target: Any, shape: Any, **more: Any) -> None:
    """Have a staged backend over the group's own carry out one operation."""
    core = core_of(pg)
    copier: Any = Copier()
    backend: Any = core.host
    staged = StagedBackend(backend, 0, copier)
    call = Call(kind, core.numbers.issue(), source.dtype, shape, **more)
    work = core.work(call, True)
    operation = Operation(call, work, source, target, target, core.flight.ended)
    core.flight.issue(operation, 30)
    staged.submit(operation)
    await work


@pytest.mark.parametrize("form", few(["stacked", "list"], ["list"]))
@spmd(world_size=4, hosts=2)
async def test_collectives(pg: ProcessGroup, form: str) -> None:
    """All in one job: each of several hosts costs an interpreter that imports everything."""
    await gather(pg, form)
    await reduce_and_broadcast(pg)


async def gather(pg: ProcessGroup, form: str) -> None:
    """all_gather of several shapes."""
    for shape in ((7,), (COUNT,), (COUNT // 25, 25)):
        values = np.arange(1.0 * np.prod(shape)).reshape(shape)
        target = np.zeros((4, *shape)) if form == "stacked" else [np.zeros(shape) for _ in range(4)]
        await carry(pg, Kind.all_gather, values + pg.rank * 1e6, target, shape)
        for rank in range(4):
            assert np.array_equal(target[rank], values + rank * 1e6), (shape, rank)


async def reduce_and_broadcast(pg: ProcessGroup) -> None:
    """all_reduce and broadcast of two axes."""
    shape = (400, COUNT // 400)
    tensor = np.arange(1.0 * COUNT).reshape(shape) + pg.rank
    await carry(pg, Kind.all_reduce, tensor, tensor, shape, reduce=ReduceOp.SUM)
    assert np.array_equal(tensor, 4 * np.arange(1.0 * COUNT).reshape(shape) + 6)
    tensor = np.arange(1.0 * COUNT).reshape(shape) * (pg.rank + 1)
    await carry(pg, Kind.broadcast, tensor, tensor, shape, root=1)
    assert np.array_equal(tensor, 2 * np.arange(1.0 * COUNT).reshape(shape))
