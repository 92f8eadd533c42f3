"""Engines that only exchange messages do all that a backend must; numbers, checks and matching are ours."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.foreign import Task
from aiodist.backends.foreign.engine import Done
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend, run_cluster
from tests.backends.foreign.postbox import BesidePostbox, PostboxEngine
from tests.levels import COSTLY, few

dist.register_backend("postbox", PostboxEngine)
dist.register_backend("postbox-beside", BesidePostbox)

ENGINES = pytest.mark.parametrize("backend", ["postbox", "postbox-beside"])


@pytest.mark.slow(COSTLY)
@ENGINES
@pytest.mark.parametrize("size", few([1, 2, 3, 5], [3]))
async def test_engine_does_all_that_a_backend_must(backend: str, size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        assert pg.backend == backend
        await check_backend(pg, seed=size, length=40)

    await run_cluster(size, main, backend=backend)


@ENGINES
async def test_ranks_that_disagree_are_told_and_no_result_is_given(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(np.arange(4.0) + pg.rank)
        with pytest.raises(dist.CollectiveMismatch, match=r"float64\[3\]"):
            await pg.all_reduce(np.arange(3.0 if pg.rank else 4.0))

    await run_cluster(3, main, backend=backend)


@ENGINES
async def test_message_that_does_not_fit_is_found_before_the_engine_has_it(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch, match=r"float32\[5\]"):
            if pg.rank == 0:
                work = pg.send(np.zeros(5, np.float32), 1, async_op=True)
                await pg.barrier()
                await work
            else:
                await pg.recv(np.zeros(4, np.float32), 0)

    await run_cluster(2, main, backend=backend)


async def test_library_that_refuses_what_members_disagree_about_does_not_hide_that_they_do() -> None:
    class Refusing(BesidePostbox):
        name = "refusing"

        def all_reduce(self, task: Task, done: Done) -> None:
            if task.source is not None and task.source.size == 3:
                raise ValueError("invalid usage")
            self.compose(task, done)

    dist.register_backend("refusing", Refusing)

    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch, match=r"float64\[3"):
            await pg.all_reduce(np.arange(3.0 if pg.rank else 4.0))

    async def alike(pg: ProcessGroup) -> None:
        with pytest.raises(dist.GroupBroken, match="ValueError: invalid usage"):
            await pg.all_reduce(np.arange(3.0))

    await run_cluster(3, main, backend="refusing")
    await run_cluster(2, alike, backend="refusing")


async def test_batch_reaches_the_engine_as_one() -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            works = [pg.all_reduce(np.arange(3.0) * (pg.rank + i), async_op=True) for i in range(4)]
        for i, work in enumerate(works):
            assert np.array_equal(await work, np.arange(3.0) * (1 + 2 * i))

    BesidePostbox.batches.clear()
    await run_cluster(2, main, backend="postbox-beside")
    assert BesidePostbox.batches == [4, 4]


@ENGINES
async def test_abort_fails_what_waits_for_the_others(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            work = pg.all_reduce(np.ones(3), async_op=True)
            with pytest.raises(dist.GroupAborted, match="enough"):
                await work
        else:
            await asyncio.sleep(0)
            pg.abort("enough")

    await run_cluster(2, main, backend=backend)


async def test_member_that_breaks_while_the_engine_opens_is_no_hang() -> None:
    class Stuck(PostboxEngine):
        name = "stuck"

        async def open(self) -> None:
            if self.setup.rank == 1:
                raise RuntimeError("no such library")
            await super().open()

    dist.register_backend("stuck", Stuck)

    async def main(pg: ProcessGroup) -> None:
        raise AssertionError("there is no group")

    failed: list[Any] = await run_cluster(3, main, backend="stuck", return_exceptions=True)
    assert isinstance(failed[1], RuntimeError | dist.GroupBroken)
    for other in (failed[0], failed[2]):
        assert isinstance(other, dist.AiodistError), other


async def test_device_tensor_is_refused_by_name() -> None:
    class OnDevice:
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {
            "shape": (3,),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "strides": None,
        }

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match="lies on a CUDA device; backend 'postbox' takes"):
            _ = pg.all_reduce(OnDevice())
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3

    await run_cluster(2, main, backend="postbox")


async def test_engines_end_with_their_groups() -> None:
    made: list[PostboxEngine] = []

    class Counted(PostboxEngine):
        name = "counted"

        def __init__(self, setup: object) -> None:
            super().__init__(setup)  # type: ignore[arg-type]
            made.append(self)

    dist.register_backend("counted", Counted)

    async def main(pg: ProcessGroup) -> None:
        half = await pg.split(pg.rank % 2)
        assert half is not None
        assert (await half.all_reduce(np.array([pg.rank + 1])))[0] == (4 if pg.rank % 2 == 0 else 6)
        await half.aclose()

    await run_cluster(4, main, backend="counted")
    assert len(made) == 8
    assert all(engine.closed for engine in made)


async def test_engine_that_cannot_open_on_one_rank_breaks_the_group_on_all() -> None:
    class Full(PostboxEngine):
        name = "full"

        async def open(self) -> None:
            await super().open()
            if self.setup.size == 2:
                if self.setup.rank == 1:
                    raise dist.GroupBroken("there is no room", hint="Close something")
                await asyncio.Event().wait()

    dist.register_backend("full", Full)

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 2:
            assert await pg.new_group([0, 1]) is None
        else:
            with pytest.raises(dist.GroupBroken, match=r"there is no room\. Close something"):
                await pg.new_group([0, 1])
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 6

    await run_cluster(3, main, backend="full")


async def test_members_change_where_the_engine_can_follow_them() -> None:
    class Lasting(PostboxEngine):
        name = "lasting"
        capabilities = frozenset()

    dist.register_backend("lasting", Lasting)

    async def cannot(pg: ProcessGroup) -> None:
        before = pg.issued_count()
        with pytest.raises(dist.UsageError, match="'lasting' cannot go on with other members") as caught:
            await pg.rebuild()
        assert "aiodist run" not in caught.value.hint  # it may not be what starts this job
        with pytest.raises(dist.UsageError, match="'lasting' cannot go on with other members"):
            dist.GradientSync(pg, [np.zeros(3)], elastic=True)
        assert pg.issued_count() == before

    async def can(pg: ProcessGroup) -> None:
        nxt = await pg.rebuild()
        assert (nxt.epoch, nxt.backend) == (1, "postbox")
        assert (await nxt.all_reduce(np.array([nxt.rank + 1])))[0] == 3

    await run_cluster(2, cannot, backend="lasting")
    await run_cluster(2, can, backend="postbox")


@ENGINES
async def test_splits_that_do_not_fit_are_told_by_both_sides(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        sent = [1, 2, 3]
        expected = [sent[pg.rank]] * 3
        if pg.rank == 2:
            expected[0] += 1
        with pytest.raises(dist.CollectiveMismatch) as caught:
            await pg.all_to_all(np.arange(6.0), None, sent, expected)
        assert caught.value.said == {
            0: "all_to_all sends 3 elements to rank 2",
            2: "all_to_all expects 4 elements from rank 0",
        }

    await run_cluster(3, main, backend=backend)


async def test_nobody_uses_the_group_before_all_engines_are_open() -> None:
    class Late(PostboxEngine):
        name = "late"

        async def open(self) -> None:
            await super().open()
            if self.setup.rank == 0:
                for _ in range(500):  # turns of the loop: enough for rank 1 to go through its part
                    await asyncio.sleep(0)

    dist.register_backend("late", Late)
    entered: list[int] = []

    async def main(pg: ProcessGroup) -> None:
        entered.append(pg.rank)
        if pg.rank == 1:
            pg.abort("at once")

    await run_cluster(2, main, backend="late")
    assert sorted(entered) == [0, 1]
