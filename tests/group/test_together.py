"""Steps that belong together run to their end, and a cancellation comes afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.together import together
from aiodist.testing import run_cluster


async def test_a_cancelled_handler_leaves_nobody_waiting() -> None:
    async def main(pg: ProcessGroup) -> float:
        begun = asyncio.Event()

        async def both() -> float:
            one = await pg.all_reduce(np.array([1.0 + pg.rank]))
            begun.set()
            two = await pg.all_reduce(one * 2)
            return float(two[0])

        task = asyncio.create_task(pg.together(both()))
        await begun.wait()
        if pg.rank == 0:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            result = 12.0
        else:
            result = await task
        return result + float((await pg.all_reduce(np.array([pg.rank])))[0])

    assert await run_cluster(2, main) == [13.0, 13.0]


async def test_results_and_errors() -> None:
    async def steps(value: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(value, Exception):
            raise value
        return value

    assert await together(steps(5)) == 5
    with pytest.raises(KeyError):
        await together(steps(KeyError("x")))
    with pytest.raises(dist.UsageError, match="takes a coroutine"):
        await together(steps)  # type: ignore[arg-type]


async def test_an_error_after_the_cancellation_is_its_cause() -> None:
    go = asyncio.Event()

    async def steps() -> None:
        await go.wait()
        raise KeyError("late")

    task = asyncio.create_task(together(steps()))
    for _ in range(3):  # again and again
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, KeyError)


async def test_steps_that_are_cancelled_themselves() -> None:
    async def steps() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await together(steps())
