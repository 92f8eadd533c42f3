"""torch's smaller names: WORLD, what is available, and parameters that torch has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster


async def test_the_world_is_named_as_in_torch() -> None:
    async def main(pg: ProcessGroup) -> None:
        assert dist.get_rank(dist.group.WORLD) == dist.get_rank(dist.GroupMember.WORLD) == pg.rank
        await dist.barrier(dist.group.WORLD)
        await dist.barrier(group=dist.group.WORLD)
        assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1]

    await run_cluster(2, main)


def test_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.is_available()
    assert dist.is_backend_available("host") and dist.is_backend_available("GLOO")
    assert not dist.is_backend_available("smoke") and not dist.is_backend_available("")
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    assert not dist.is_backend_available("nccl") and not dist.is_backend_available("cpu:host,cuda:nccl")


def test_who_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not dist.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert dist.is_torchelastic_launched()


async def test_barrier_takes_torchs_parameters() -> None:
    async def main(pg: ProcessGroup) -> None:
        await dist.barrier(None, False, [0], timedelta(seconds=20))
        with pytest.raises(dist.UsageError, match="timeout"):
            dist.barrier(timeout=-1)
        if pg.rank == 0:
            with pytest.raises(dist.CollectiveTimeout, match="rank 1 had not arrived"):
                await dist.barrier(timeout=0.2)
        else:
            with pytest.raises(dist.CollectiveTimeout):
                await pg.recv(np.zeros(1), 0)

    await run_cluster(2, main)


async def test_group_makers_take_torchs_parameters_in_torchs_order() -> None:
    async def main(pg: ProcessGroup) -> None:
        mine, all_of_them = await dist.new_subgroups(2, None, 9.0, "gloo", object(), "pair")
        assert isinstance(mine, ProcessGroup)
        assert (mine.name, mine.timeout, len(all_of_them)) == ("pair", 9.0, 2)
        mine, _ = await dist.new_subgroups_by_enumeration([[0, 2], [1, 3]], 9.0, "host", object(), "odd")
        assert isinstance(mine, ProcessGroup)
        assert (mine.name, mine.ranks) == ("odd", (pg.rank % 2, pg.rank % 2 + 2))
        split = await dist.split_group(None, [[0, 1, 2], [3]], 9.0, object(), "part", "gloo")
        assert isinstance(split, ProcessGroup)
        assert (split.name, split.size) == ("part", 1 if pg.rank == 3 else 3)
        with pytest.raises(dist.UsageError, match="backend='nccl'"):
            await dist.split_group(None, [[0, 1, 2, 3]], backend="nccl")

    await run_cluster(4, main)


async def test_weights_only_is_a_promise_that_holds() -> None:
    """True: nothing that was pickled is read; what msgpack carries is."""

    async def main(pg: ProcessGroup) -> None:
        objects: list[Any] = [None] * 2
        await dist.all_gather_object(objects, {"rank": pg.rank}, None, True)
        assert objects == [{"rank": 0}, {"rank": 1}]
        mine = [pg.rank]
        calls: list[Callable[..., Any]] = [
            partial(dist.all_gather_object, objects, mine),
            partial(dist.gather_object, mine, None if pg.rank else objects, 0),
            partial(dist.broadcast_object_list, objects, 0),
            partial(dist.scatter_object_list, objects, [mine, mine], 0),
            partial(dist.send_object_list, mine, 1 - pg.rank),
            partial(dist.recv_object_list, mine, 1 - pg.rank),
        ]
        for call in calls:
            with pytest.raises(dist.UsageError, match="weights_only=True forbids pickle"):
                call(weights_only=True, allow_pickle=True)
        if pg.rank == 0:
            await dist.send_object_list([slice(3)], 1, allow_pickle=True)
        else:
            with pytest.raises(dist.UsageError, match="pickle"):
                await dist.recv_object_list(mine, 0, weights_only=True)

    await run_cluster(2, main)


async def test_a_world_takes_what_torch_passes_to_its_own() -> None:
    async with dist.init_process_group(world_size=1, pg_options=object(), enable_reconfigure=True) as pg:
        assert pg.size == 1
