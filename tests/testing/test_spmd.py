"""`@spmd`: failures, hangs and expected exits of real processes are told so that one can find them."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import RanksFailed, spmd
from aiodist.testing.spmd import Outcome, check, launch


@pytest.mark.parametrize("word", ["one", "two"])
@spmd(world_size=2, env={"OF_THE_TEST": "here"})
async def test_arguments_and_environment_reach_every_rank(pg: ProcessGroup, word: str) -> None:
    assert word in ("one", "two")
    assert os.environ["OF_THE_TEST"] == "here"
    assert (pg.rank, pg.size) == (int(os.environ["RANK"]), 2)
    assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3


@pytest.mark.parametrize("world_size", [1, 3])
@spmd()
async def test_world_size_may_be_a_parameter(pg: ProcessGroup, world_size: int) -> None:
    assert pg.size == world_size


# What follows is run by the tests below, as pytest would run it.


@spmd(world_size=3)
async def scene_rank_1_fails(pg: ProcessGroup) -> None:
    if pg.rank == 1:
        raise ValueError("the batch is bad")
    await pg.all_reduce(np.zeros(3))


@spmd(world_size=2, timeout=10)
async def scene_rank_0_hangs(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.recv(np.zeros(3), 1)
    else:
        await stuck_in_here()


async def stuck_in_here() -> None:
    signal.sigwait([signal.SIGUSR2])


@spmd(world_size=2, exits={1: 3, 0: 0})
async def scene_rank_1_exits_with(pg: ProcessGroup, code: int) -> None:
    if pg.rank == 1:
        await pg.recv(np.zeros(1), 0)  # a message of its own could be lost with it
        os._exit(code)
    await pg.send(np.zeros(1), 1)


@spmd(world_size=3)
async def scene_rank_2_is_killed(pg: ProcessGroup) -> None:
    await pg.barrier()
    if pg.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await pg.barrier()


@spmd(world_size=1, timeout=10)
async def scene_child_holds_the_output(pg: ProcessGroup) -> None:
    if os.fork() == 0:
        signal.sigwait([signal.SIGUSR2])
        os._exit(0)


def failure(test: Any, **arguments: Any) -> str:
    """What a decorated function fails with."""
    with pytest.raises(RanksFailed) as caught:
        test(**arguments)
    return str(caught.value)


def test_failing_rank_fails_the_test_with_its_traceback_first() -> None:
    text = failure(scene_rank_1_fails)
    assert text.startswith("── rank 1 exited with 1 ──")
    first = text.split("── rank ")[1]
    assert "Traceback" in first
    assert "ValueError: the batch is bad" in first
    assert 'raise ValueError("the batch is bad")' in first
    assert "GroupAborted: rank 1 aborted the group: ValueError: the batch is bad" in text


@pytest.mark.slow("a time limit of ten seconds")
def test_hangs_are_killed_with_stacks_shown() -> None:
    with ThreadPoolExecutor(2) as threads:  # each takes seconds
        hang = threads.submit(failure, scene_rank_0_hangs)
        outlived = threads.submit(failure, scene_child_holds_the_output)
        text = hang.result()
    assert text.startswith("no end within 10 s")
    assert "── rank 0 exited with -9 ──" in text
    assert "── rank 1 exited with -9 ──" in text
    assert "stuck_in_here" in text
    assert "most recent call first" in text
    assert outlived.result().startswith("no end within 10 s")


def test_expected_exit_codes() -> None:
    scene_rank_1_exits_with(code=3)


def test_other_exit_code_fails() -> None:
    assert failure(scene_rank_1_exits_with, code=4).startswith("── rank 1 exited with 4 ──")


def test_rank_that_dies_silently_comes_before_those_that_raise_because_of_it() -> None:
    text = failure(scene_rank_2_is_killed)
    assert text.startswith("── rank 2 exited with -9 ──")
    assert text.count("PeerLost: lost rank 2") >= 2


def test_first_to_fail_comes_first() -> None:
    outcomes = [Outcome(0, 1, "later", 3), Outcome(1, 0, "fine", 1), Outcome(2, -9, "first", 2)]
    with pytest.raises(RanksFailed) as caught:
        check(outcomes, {})
    assert str(caught.value) == "── rank 2 exited with -9 ──\nfirst\n── rank 0 exited with 1 ──\nlater"
    check(outcomes, {0: 1, 2: -9})
    with pytest.raises(RanksFailed, match="rank 1 exited with 0"):
        check(outcomes, {0: 1, 1: 5, 2: -9})


async def test_launch_gives_code_output_and_order() -> None:
    code = "import os, sys; print('rank', os.environ['RANK']); print('err', file=sys.stderr); sys.exit(7)"
    outcomes = await launch(["-c", code], 2, timeout=60)
    assert [(o.rank, o.code) for o in outcomes] == [(0, 7), (1, 7)]
    assert sorted(o.order for o in outcomes) == [1, 2]
    assert all(f"rank {o.rank}" in o.output and "err" in o.output for o in outcomes)


async def test_cancelled_launch_leaves_nothing() -> None:
    task = asyncio.create_task(launch(["-c", "import signal; signal.pause()"], 2, timeout=60))
    while len(asyncio.all_tasks()) < 4:  # noqa: ASYNC110 — until both ranks are watched
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_function_must_take_the_group() -> None:
    async def wrong(group: ProcessGroup) -> None:
        pass

    with pytest.raises(TypeError, match="must take the process group as its first argument, `pg`"):
        spmd()(wrong)
    assert list(inspect.signature(scene_rank_1_exits_with).parameters) == ["code"]
