"""One group, two backends, real processes: shared memory for tensors of the host, an engine for others."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.cuda import library
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from tests.backends.foreign.device_box import ForDevices, OnDevice
from tests.levels import COSTLY, few
from tests.third_party.aiodist_unix import UnixEngine


class UnixDevice(ForDevices, UnixEngine):
    """Another project's engine, for tensors that lie elsewhere."""

    name = "unix-device"


async def one(pg: ProcessGroup, number: int, kind: str) -> None:
    """An operation whose result says whether it met the same one of the others."""
    everybody = np.arange(pg.size)
    if kind == "device":
        tensor = OnDevice(np.arange(7) * (number + pg.rank))
        await pg.all_reduce(tensor)
        assert np.array_equal(tensor.values, np.arange(7) * (number + everybody).sum())
    elif kind == "host":
        array = np.arange(5.0) + number * pg.rank
        await pg.all_reduce(array)
        assert np.array_equal(array, np.arange(5.0) * pg.size + number * everybody.sum())
    elif kind == "large":
        array = np.arange(50_000) + number * pg.rank
        await pg.all_reduce(array)
        assert np.array_equal(array, np.arange(50_000) * pg.size + number * everybody.sum())
    elif kind == "object":
        assert await pg.all_gather_object((number, pg.rank)) == [(number, rank) for rank in everybody]
    else:
        await pg.barrier()


async def main() -> None:
    """On every rank: programs of all kinds, one after the other and hundreds at once."""
    dist.register_backend(UnixDevice.name, UnixDevice)
    library.choose_device = lambda *_: 0  # what a tensor's device is, only `OnDevice` says
    async with await dist.init_process_group("cpu:host,cuda:unix-device", timeout=60) as pg:
        assert pg.backend == "cpu:host,cuda:unix-device"
        rng = random.Random(3)  # the same on all ranks
        kinds = rng.choices(["device", "host", "large", "object", "barrier"], [4, 6, 1, 1, 1], k=400)
        for number, kind in enumerate(kinds):
            await one(pg, number, kind)
        async with asyncio.TaskGroup() as tasks:
            for number, kind in enumerate(kinds):
                tasks.create_task(one(pg, number, kind))
        await check_backend(pg, length=30)
        tensor = OnDevice(np.arange(3.0))
        for _ in range(200):  # no number of the host's for a long time
            await pg.all_reduce(tensor, dist.ReduceOp.MAX)
        await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("size", few([2, 3], [2]))
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
def test_operations_of_both_in_any_mixture(size: int, transport: str) -> None:
    env = {"AIODIST_TRANSPORT": transport}
    check(asyncio.run(launch([__file__], size, timeout=120, env=env)), {})


if __name__ == "__main__":
    dist.run(main())
