"""A group that the program drops and has not closed: it is closed when nothing of it is under way here, and
the world's end says which lines forgot."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.core import GroupCore
from aiodist.testing import run_cluster, run_virtual, spmd
from tests.helpers import core_of, error_of
from tests.levels import COSTLY
from tests.support.chaos import Chaos
from tests.waiting import until_so

FORGOTTEN = "never closed that new_group"
IGNORED = "ignore:.*never closed that:RuntimeWarning"

Warned = list[tuple[str, int, str]]


def warned_by(main: Callable[[ProcessGroup], Any], size: int = 2) -> Warned:
    """The warnings of a run in virtual time: file, line and text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_virtual(run_cluster(size, main))
        gc.collect()
    return [(one.filename, one.lineno, str(one.message)) for one in caught]


async def until_closed_here() -> None:
    """Until this rank has no group open but the world."""
    await until_so(lambda: dist.get_pg_count() == 1, "the end of the dropped groups")


async def until_closed(pg: ProcessGroup) -> None:
    """The same on every rank."""
    await until_closed_here()
    await pg.barrier()


def line_of(function: Callable[..., Any], below: int) -> int:
    return function.__code__.co_firstlineno + below


async def make_and_drop(pg: ProcessGroup) -> None:
    group: Any = await pg.new_group()
    await group.all_reduce(np.ones(3))


# ── what is given back ───────────────────────────────────────────────────────────────────────────────────


def cores() -> int:
    gc.collect()
    return sum(isinstance(one, GroupCore) for one in gc.get_objects())


async def flat(pg: ProcessGroup, most: int) -> None:
    """Make and drop many groups: nothing of them stays, nor of the shared segment."""

    async def turn(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            await make_and_drop(pg)
        await until_closed(pg)
        await until_so(lambda: cores() == before, "the end of what refers to them for a turn of the loop")
        found = cores(), pg.statistics().get("segment", {}).get("taken_bytes", 0), len(gc.get_objects())
        await pg.barrier()
        return found

    before = cores()  # those of failed tests are kept with their tracebacks
    groups, taken, objects = await turn(20)
    again, then, more = await turn(most)
    assert (again, then) == (groups, taken)
    assert more - objects < 40 * most  # what the recorder remembers of them; 260 each where they stay


@pytest.mark.slow(COSTLY)
@pytest.mark.filterwarnings(IGNORED)
def test_a_thousand_groups_leave_nothing() -> None:
    async def main(pg: ProcessGroup) -> None:
        await flat(pg, 1000)

    run_virtual(run_cluster(1, main))


@pytest.mark.slow(COSTLY)
@spmd(2, transport="shm", timeout=120)
async def test_many_groups_leave_nothing_in_the_shared_segment(pg: ProcessGroup) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    await flat(pg, 200)


@pytest.mark.slow(COSTLY)
@spmd(2, transport="tcp", timeout=120)
async def test_many_groups_leave_nothing_over_sockets(pg: ProcessGroup) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    await flat(pg, 100)


def test_a_cycle_is_closed_when_it_is_collected() -> None:
    async def main(pg: ProcessGroup) -> None:
        ring = SimpleNamespace(group=await pg.new_group())
        ring.itself = ring
        await ring.group.barrier()
        del ring
        gc.collect()
        await until_closed(pg)

    assert len(warned_by(main)) == 2  # of two ranks


def test_it_may_be_dropped_by_another_thread() -> None:
    async def main(pg: ProcessGroup) -> None:
        asyncio.get_running_loop().set_debug(True)  # it refuses what is not meant for other threads
        box = [await pg.new_group()]
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        await until_closed(pg)
        asyncio.get_running_loop().set_debug(False)

    assert len(warned_by(main)) == 2


def test_a_call_that_nobody_waits_for_any_more_leaves_no_group() -> None:
    async def main(pg: ProcessGroup) -> None:
        making = asyncio.ensure_future(pg.new_group())
        await asyncio.wait([making])
        del making
        await until_closed(pg)

    assert len(warned_by(main)) == 2


# ── what keeps it open ───────────────────────────────────────────────────────────────────────────────────


def test_operations_under_way_end_first() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 2:
            group: Any = await pg.new_group()
            await asyncio.sleep(5)
            assert (await group.all_reduce(np.full(3, 3.0)))[0] == 6
            await group.aclose()
        else:
            made: Any = await pg.new_group()
            work, made = made.all_reduce(np.full(3, pg.rank + 1.0), async_op=True), None
            await asyncio.sleep(1)
            assert (work.group.name, work.group.rank) == ("world.1", pg.rank)
            assert (await work)[0] == 6
        await until_closed(pg)

    assert [FORGOTTEN in text for _, _, text in warned_by(main, 3)] == [True, True]


@pytest.mark.slow(COSTLY)
def test_a_group_that_is_taken_from_its_work_stays_until_it_is_dropped_again() -> None:
    """While what was under way ends, and after that, too."""

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        if pg.rank == 0:
            work, group = group.recv_object(1, async_op=True), None
            gc.collect()
            await asyncio.sleep(1)
            group = work.group
            await pg.send_object("go on", 1)
            assert await work == "late"
        else:
            await pg.recv_object(0)
            await group.send_object("late", 0)
        await asyncio.sleep(1)
        await group.barrier()
        del group
        if pg.rank == 0:
            del work
        gc.collect()
        await until_closed(pg)

    assert len(warned_by(main)) == 2


def test_what_was_forgotten_in_an_earlier_epoch_is_told_at_the_end() -> None:
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> None:
        await make_and_drop(pg)
        await until_closed(pg)
        if pg.rank == 1:
            asyncio.get_running_loop().call_later(0.01, chaos.crash, 1)
        with pytest.raises(dist.PeerLost):
            while True:
                await pg.barrier()
        new = await pg.rebuild()
        await new.barrier()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_virtual(run_cluster(3, main, processes=chaos, return_exceptions=True))
    assert [str(one.message) for one in caught] == [TOLD.format("a group was", "new_group")] * 2


@pytest.mark.filterwarnings(IGNORED)
def test_a_receive_waits_for_its_message() -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        if pg.rank == 0:
            work, group = group.recv_object(1), None
            gc.collect()
            assert await work == "at last"
            await until_closed_here()
        else:
            await asyncio.sleep(1000)
            await group.send_object("at last", 0)
            await group.aclose()

    run_virtual(run_cluster(2, main))


@pytest.mark.filterwarnings(IGNORED)
@pytest.mark.parametrize("how", ["objects", "batch", "subgroup", "split", "bound", "task"])
def test_what_a_dropped_group_still_does(how: str) -> None:
    async def in_a_batch(batch: Any) -> None:
        async with batch:
            await asyncio.sleep(1)

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        if how == "objects":
            work, group = group.all_gather_object(pg.rank, async_op=True), None
            assert await work == [0, 1]
        elif how == "batch":
            batch, group = group.coalesce(), None
            await in_a_batch(batch)
            del batch
        elif how == "subgroup":
            making, group = group.new_group(), None
            await asyncio.sleep(pg.rank)
            async with await making as child:
                assert (await child.all_reduce(np.full(1, pg.rank + 1)))[0] == 3
            del making
        elif how == "split":
            making, group = group.split(0, key=-pg.rank), None
            async with making as child:
                assert child.rank == 1 - pg.rank
            del making, child
        elif how == "bound":
            barrier, group = group.barrier, None
            await asyncio.sleep(1)
            await barrier()
            del barrier
        else:

            async def use(group: ProcessGroup) -> float:
                await asyncio.sleep(1)
                return float((await group.all_reduce(np.full(1, pg.rank + 1.0)))[0])

            task, group = asyncio.create_task(use(group)), None
            assert await task == 3
            del task
        if how == "subgroup":
            del child
        await until_closed(pg)

    assert len(warned_by(main)) == 2


# ── what others see ──────────────────────────────────────────────────────────────────────────────────────


def check_that_it_left(error: BaseException) -> None:
    assert isinstance(error, dist.PeerLost)
    assert error.ranks == (1,)
    assert "it closed the group while others still needed it" in str(error)


async def drop_on_rank_1(pg: ProcessGroup) -> None:
    group: Any = await pg.new_group()
    await group.all_reduce(np.full(3, pg.rank + 1.0))
    if pg.rank == 1:
        group = None
        await until_closed_here()
    else:
        check_that_it_left(await error_of(group.all_reduce(np.ones(3))))
        await group.aclose()
    await pg.barrier()


def test_peers_that_go_on_learn_who_has_left() -> None:
    assert len(warned_by(drop_on_rank_1)) == 1


@pytest.mark.slow(COSTLY)
@spmd(2, transport="shm")
async def test_processes_that_go_on_learn_who_has_left(pg: ProcessGroup) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    await drop_on_rank_1(pg)


@pytest.mark.slow(COSTLY)
@spmd(2, transport="tcp")
async def test_processes_that_go_on_learn_over_sockets_who_has_left(pg: ProcessGroup) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    await drop_on_rank_1(pg)


@pytest.mark.filterwarnings(IGNORED)
def test_a_receive_from_a_rank_that_has_dropped_it_ends() -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        if pg.rank == 0:
            group = None
        else:
            with pytest.raises(dist.PeerClosed) as caught:
                await group.recv_object(0)
            assert caught.value.ranks == (0,)
            await group.aclose()
        await pg.barrier()

    run_virtual(run_cluster(2, main))


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────


def test_each_line_is_told_once_with_its_count() -> None:
    async def main(pg: ProcessGroup) -> None:
        for _ in range(3):
            await make_and_drop(pg)
        await pg.split(0)
        await pg.new_group([0], use_local_synchronization=True)
        await until_closed(pg)

    here = __file__
    assert warned_by(main, 1) == [
        (here, line_of(make_and_drop, 1), TOLD.format("3 groups were", "new_group")),
        (here, line_of(main, 3), TOLD.format("a group was", "split")),
        (here, line_of(main, 4), TOLD.format("a group was", "new_group")),
    ]


TOLD = (
    "{} dropped and never closed that {}() made; close each after its last use, "
    "by `async with` or `aclose()` (`close()` in the portal)"
)


def test_a_line_that_goes_on_is_told_before() -> None:
    async def main(pg: ProcessGroup) -> None:
        for _ in range(3):
            await make_and_drop(pg)
            await asyncio.sleep(3)
        assert len(caught) == 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_virtual(run_cluster(1, main))
    first, last = [str(one.message) for one in caught]
    assert first.startswith("a group was dropped") and last.startswith("3 groups were dropped")


def test_what_is_no_mistake() -> None:
    async def main(pg: ProcessGroup) -> None:
        closed: Any = await pg.new_group()
        await closed.aclose()
        async with pg.new_group() as entered:
            assert entered is not None
            await entered.barrier()
        broken: Any = await pg.new_group()
        broken.abort("enough")
        del closed, entered, broken
        made: Any = await pg.new_group()
        by_its_work, made = made.barrier(async_op=True), None
        await by_its_work
        await by_its_work.group.aclose()
        del by_its_work
        await until_closed(pg)
        held: Any = await pg.new_group()  # the world's end closes it
        await held.barrier()

    assert warned_by(main, 1) == []


async def test_an_error_by_which_the_program_ends_has_a_note() -> None:
    async def main(pg: ProcessGroup) -> None:
        await make_and_drop(pg)
        await until_closed(pg)
        raise ValueError("mine")

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_cluster(1, main)
    (error,) = caught.value.exceptions
    note = f"new_group() made at {os.path.relpath(__file__)}:{line_of(make_and_drop, 1)};"
    assert note in error.__notes__[0]


async def test_its_forgotten_awaits_are_the_worlds() -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        for _ in range(2):
            group.barrier()
        await core_of(group).until_idle()
        del group
        await until_closed(pg)

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_cluster(1, main)
    (error,) = caught.value.exceptions
    assert isinstance(error, dist.ForgottenAwait)
    ((op, _, line, count),) = error.origins
    assert (op, line, count) == ("barrier", line_of(main, 3), 2)
    assert FORGOTTEN in error.__notes__[0]


async def test_a_failure_that_nobody_was_told_is_the_worlds() -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        if pg.rank == 1:
            group.abort("out of disk")
        else:
            group.barrier(async_op=True)
        del group
        await until_closed(pg)

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_cluster(2, main)
    (error,) = caught.value.exceptions
    assert isinstance(error, dist.GroupAborted)
    assert "out of disk" in str(error)


# ── where there is nothing to do ─────────────────────────────────────────────────────────────────────────

AT_THE_END = """
import asyncio, gc, os, sys
import aiodist as dist

kept = []

async def main():
    pg = await dist.init_process_group(world_size=1)
    kept.append(await pg.new_group())
    if sys.argv[1] == "fork":
        child = os.fork()
        if child == 0:
            kept.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        await kept[0].barrier()
    await pg.aclose()

asyncio.run(main())
if sys.argv[1] == "late":
    kept.clear()
    gc.collect()
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("when", ["fork", "late", "at exit"])
def test_nothing_happens_in_a_child_nor_after_the_loop(when: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(AT_THE_END)
    ended = subprocess.run(
        [sys.executable, "-Werror", str(path), when],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_loop_that_is_closed_leaves_what_is_dropped_later() -> None:
    async def make() -> Any:
        pg = await dist.init_process_group(world_size=1)
        group: Any = await pg.new_group()
        gone.append(weakref.ref(group))
        return group

    gone: list[Any] = []
    with asyncio.Runner() as runner:
        group = runner.run(make())
        runner.run(dist.destroy_process_group())
    del group
    gc.collect()
    assert gone[0]() is None


@pytest.mark.slow(COSTLY)
def test_a_loop_that_is_closed_before_the_world_leaves_what_is_dropped_later(tmp_path: Path) -> None:
    """Nothing is closed then, and nothing is said but what Python says."""
    path = tmp_path / "late.py"
    path.write_text(
        "import asyncio, gc\nimport aiodist as dist\nloop, kept = asyncio.new_event_loop(), []\n"
        "async def main():\n"
        "    kept.append(await dist.init_process_group(world_size=1))\n"
        "    kept.append(await kept[0].new_group())\n"
        "loop.run_until_complete(main())\nloop.close()\nkept.pop()\ngc.collect()\nprint('still here')\n"
    )
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert "still here" in ended.stdout, ended.stderr
    assert "_leave_dropped" not in ended.stderr and "call_soon_threadsafe" not in ended.stderr, ended.stderr


# ── synchronous code ─────────────────────────────────────────────────────────────────────────────────────

PORTAL = """
import gc
import numpy as np
from aiodist import portal as dist

pg = dist.init_process_group(world_size=1)
for _ in range(3):
    group = pg.new_group()
    group.all_reduce(np.ones(3))
del group
gc.collect()
while sum(not group.closed for group in pg._group._core.family) > 1:
    pg.barrier()
pg.close()
"""


@pytest.mark.slow(COSTLY)
def test_a_group_of_the_portal_is_closed_likewise(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PORTAL)
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{path}:8: RuntimeWarning: {TOLD.format('3 groups were', 'new_group')}" in ended.stderr
