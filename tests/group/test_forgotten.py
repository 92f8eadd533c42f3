"""A forgotten await is an error of the group's end, at the line that forgot; nothing else is one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends import forgotten
from aiodist.backends.forgotten import Forgotten, Origin
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.helpers import core_of
from tests.levels import COSTLY

HERE = Origin("barrier", "train.py", 7)


def ones(count: int = 3) -> Any:
    return np.ones(count)


async def small(pg: ProcessGroup) -> None:
    pg.all_reduce(ones())


async def large(pg: ProcessGroup) -> None:
    pg.all_reduce(ones(1_000_000))


async def module_level(pg: ProcessGroup) -> None:
    dist.all_reduce(ones(), group=pg)


async def an_object(pg: ProcessGroup) -> None:
    pg.all_gather_object("mine")


async def a_kept_one(pg: ProcessGroup) -> None:
    work = pg.all_reduce(ones(), async_op=False)
    await core_of(pg).until_idle()
    assert work.done()


@pytest.mark.parametrize("forget", [small, large, module_level, an_object, a_kept_one])
async def test_it_is_raised_at_the_end_with_its_line_and_count(
    forget: Callable[[ProcessGroup], Awaitable[None]],
) -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        for _ in range(3):
            await forget(group)
        gc.collect()
        with pytest.raises(dist.ForgottenAwait, match=r"never awaited: .* \(3 times\)") as caught:
            await group.aclose()
        ((op, file, line, count),) = caught.value.origins
        assert op.startswith("all_") and count == 3
        assert (file, line) == (__file__, forget.__code__.co_firstlineno + 1)
        await group.aclose()  # said once

    await run_cluster(2, main)


async def test_a_task_that_is_cancelled_before_its_first_step_has_forgotten_nothing() -> None:
    async def main(pg: ProcessGroup) -> None:
        tasks = [asyncio.ensure_future(pg.all_reduce(np.ones(3))) for _ in range(2)]
        gathered = asyncio.gather(pg.all_gather_object(1), pg.barrier())
        for task in (*tasks, gathered):
            task.cancel()
        assert all(isinstance(told, asyncio.CancelledError) for told in await _all(*tasks, gathered))
        del tasks, task, gathered
        assert not asyncio.isfuture(pg.barrier(async_op=True))
        gc.collect()
        await pg.barrier()

    await run_cluster(1, main)


async def _all(*awaited: Any) -> list[Any]:
    return await asyncio.gather(*awaited, return_exceptions=True)


async def test_what_is_no_mistake() -> None:
    async def main(pg: ProcessGroup) -> None:
        pg.all_reduce(ones(), async_op=True)
        pg.barrier()
        pg.all_reduce(ones(1_000_000))
        await pg.drain()
        async with pg.coalesce():
            pg.all_reduce(ones())
        await asyncio.gather(pg.all_reduce(ones()), pg.all_reduce(ones()))
        await asyncio.wait_for(pg.all_reduce(ones()), 60)
        await asyncio.create_task(pg.all_reduce(ones()).wait())
        await asyncio.wait([asyncio.ensure_future(pg.all_reduce(ones()))])
        pg.all_reduce(ones()).add_done_callback(print)
        waiting = asyncio.create_task(pg.all_reduce(ones(1_000_000)).wait())
        await asyncio.sleep(0)
        waiting.cancel()  # it was awaited
        await asyncio.wait([waiting])

    await run_cluster(2, main)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_the_error_by_which_a_group_is_left_stays_and_has_a_note(error: BaseException) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(type(error)) as caught:
            async with pg:
                await pg.barrier()
                pg.all_reduce(ones())
                raise error
        assert caught.value is error
        assert "Beside this: never awaited: all_reduce at" in error.__notes__[0]

    await run_cluster(1, main)


async def test_an_error_that_is_handled_while_the_group_is_closed_stays() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(ValueError, match="mine") as caught:
            try:
                pg.all_reduce(ones())
                raise ValueError("mine")
            finally:
                await pg.aclose()
        assert len(caught.value.__notes__) == 1

    await run_cluster(1, main)


async def test_a_failure_that_nobody_was_told_comes_first() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            pg.barrier()
        else:
            await pg.barrier()
        await pg.barrier()
        if pg.rank == 1:
            pg.abort("enough")
            return
        pg.all_reduce(ones())
        await core_of(pg).until_idle()
        gc.collect()
        with pytest.raises(dist.GroupAborted) as caught:
            await pg.aclose()
        assert "never awaited: barrier at" in caught.value.__notes__[0]

    await run_cluster(2, main)


async def test_a_line_that_goes_on_is_warned_of_once_before_the_end() -> None:
    seen = Forgotten()
    seen.note(HERE, 0.0, 1.0)
    seen.note(HERE, 0.0, 1.5)
    seen.drained(1.5)
    assert not seen
    seen.note(HERE, 1.4, 1.6)  # dropped later, and ended by drain() all the same
    assert not seen
    seen.note(HERE, 2.0, 2.0)
    with pytest.warns(RuntimeWarning, match=r"^barrier was never awaited; write `await`") as warned:
        for at in range(3, 9):
            seen.note(HERE, at, at)
    assert [(one.filename, one.lineno) for one in warned] == [("train.py", 7)]
    assert seen.take() == {HERE: 7}


async def test_after_the_end_it_is_warned_of_at_once_unless_an_error_ended_it() -> None:
    loop = asyncio.get_running_loop()
    seen = Forgotten(loop)
    seen.end()
    with pytest.warns(RuntimeWarning, match="barrier was never awaited"):
        seen.note(HERE, 0.0, 0.0)
    late = forgotten.taken_late(loop)
    assert late is not None and late.origins == ((*HERE, 1),)
    assert forgotten.taken_late(loop) is None
    excused = Forgotten(loop)
    excused.end(excused=True)
    excused.note(HERE, 0.0, 0.0)
    assert forgotten.taken_late(loop) is None


def test_many_lines_are_cut_and_no_line_is_said_so() -> None:
    error = dist.ForgottenAwait([("barrier", "a.py", number, 1) for number in range(12)])
    assert "and 2 more lines" in str(error)
    assert "issued by no line of the program" in str(dist.ForgottenAwait([("barrier", "", 0, 1)]))


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("kept", [False, True])
def test_the_program_fails(kept: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import numpy as np, aiodist as dist\n"
        "async def main():\n"
        "    async with await dist.init_process_group(world_size=1) as pg:\n"
        f"        {'work = ' if kept else ''}pg.all_reduce(np.ones(3))\n"
        "dist.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"ForgottenAwait: never awaited: all_reduce at {path}:4" in ended.stderr


async def test_what_wait_returns_has_to_be_awaited_too() -> None:
    async def main(pg: ProcessGroup) -> None:
        work = pg.all_reduce(np.full(3, pg.rank + 1.0), async_op=True)
        await work.wait()
        await pg.all_reduce(np.ones(3)).wait(30)
        task = asyncio.create_task(work.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if pg.rank == 0:
            pg.all_reduce(np.ones(3), async_op=True).wait()  # type: ignore[unused-coroutine]
        else:
            await pg.all_reduce(np.ones(3))

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_cluster(2, main)
    (error,) = caught.value.exceptions
    assert isinstance(error, dist.ForgottenAwait)
    assert "all_reduce at " in str(error)
