"""A user's program, as type checkers see it: `mypy --strict` and pyright, both against the installed wheel.

It is checked by `.ci/run`, and never run. `assert_type` says what an editor shows at that place.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import aiodist as dist
from aiodist.testing import spmd


async def collectives(pg: dist.ProcessGroup) -> float:
    """Works are awaited for their results; a result has the type that the operation says."""
    assert_type(pg.rank, int)
    assert_type(pg.hosts, tuple[str, ...])
    grad: npt.NDArray[np.float32] = pg.empty(8)
    work = pg.all_reduce(grad, dist.ReduceOp.AVG, async_op=True)
    assert_type(work, dist.Work[Any])
    assert_type(work.done(), bool)
    assert_type(work.exception(), BaseException | None)
    await work
    assert_type(await pg.barrier(), None)
    assert_type(await pg.recv(grad, src=0, timeout=1.5), int)
    assert_type(await pg.all_gather_object({"rank": pg.rank}), list[Any])
    assert_type(await pg.agree(True), bool)
    for handle in (pg.send(grad, 0, async_op=True), pg.barrier(async_op=True)):
        assert_type(handle, dist.Work[None])
    async with pg.coalesce():
        pg.all_reduce(grad)
    return float(grad.sum())


async def members(pg: dist.ProcessGroup) -> dist.ProcessGroup:
    """Calls that make groups."""
    assert_type(await pg.rebuild(), dist.ProcessGroup)
    half = await pg.split(pg.rank % 2)
    if half is not None:
        assert_type(half, dist.ProcessGroup)
        await half.aclose()
    try:
        await pg.barrier(timeout=0.5)
    except dist.CollectiveTimeout as error:
        assert_type(error.hint, str)
    except dist.PeerLost as error:
        assert_type(error.ranks, tuple[int, ...])
    return await dist.join()


async def stores() -> None:
    """A server, and a client of it."""
    async with await dist.StoreServer.start("::1", 0, "job", b"a secret of this job") as server:
        assert_type(server.port, int)
        async with await dist.TcpStore.connect(
            server.host, server.port, "job", b"a secret of this job"
        ) as store:
            await store.set("key", "value", ttl=2.0)
            assert_type(await store.get("key", timeout=1), bytes)
            assert_type(await store.add("n", 1), int)
            assert_type(await store.list_keys(), list[str])


async def training(pg: dist.ProcessGroup, weights: list[npt.NDArray[np.float32]]) -> None:
    """Averaged gradients, while they become known."""
    sync = await dist.GradientSync(pg, weights)
    sync.ready(0, weights[0])
    for average in await sync.finish():
        print(average.shape)


async def sharing(pg: dist.ProcessGroup, weights: list[npt.NDArray[np.float32]]) -> None:
    """An optimiser whose state is shared, and checkpoints."""

    def descend(values: npt.NDArray[Any], gradient: npt.NDArray[Any], state: dict[str, Any]) -> None:
        values -= gradient

    optimizer = await dist.ShardedOptimizer(pg, weights, descend, max_norm=1.0, redundancy=1)
    async with dist.Checkpoints(pg, "checkpoints", keep=2) as checkpoints:
        found = await checkpoints.load(optimizer=optimizer)
        if found is not None:
            print(found.step, found["epoch"])
        if await optimizer.step(weights):
            saving = await checkpoints.save(optimizer.steps, optimizer=optimizer, epoch=dist.PerRank(1))
            if saving is not None:
                print((await saving).name)


def blocking() -> None:
    """The same calls, from a thread without a loop."""
    with dist.portal.init_process_group() as pg:
        assert_type(pg, dist.SyncProcessGroup)
        assert_type(pg.rank, int)
        assert_type(pg.all_gather_object("me"), Any)


async def main() -> float:
    """As in the README."""
    async with await dist.init_process_group(timeout=30.0) as pg:
        return await collectives(pg)


@spmd(world_size=2)
async def test_sum(pg: dist.ProcessGroup) -> None:
    """A user's test of two ranks."""
    total = np.array([pg.rank], np.float32)
    assert (await pg.all_reduce(total))[0] == 1


if __name__ == "__main__":
    assert_type(dist.run(main()), float)
