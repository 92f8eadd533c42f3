"""`@spmd`: failures, hangs and expected exits of real processes are told so that one can find them."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from aiodist.base.errors import UsageError
from aiodist.group import ProcessGroup
from aiodist.testing import RanksFailed, spmd
from aiodist.testing.outcome import RankOutcome, check, put_in_order
from aiodist.testing.ranks import launch
from aiodist.testing.report import Report
from tests.levels import COSTLY


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("word", ["one", "two"])
@spmd(world_size=2, env={"OF_THE_TEST": "here"})
async def test_arguments_and_environment_reach_every_rank(pg: ProcessGroup, word: str) -> None:
    assert word in ("one", "two")
    assert os.environ["OF_THE_TEST"] == "here"
    assert (pg.rank, pg.size) == (int(os.environ["RANK"]), 2)
    assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3


@pytest.mark.slow(COSTLY)
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


@spmd(world_size=2, timeout=4)
async def scene_rank_0_hangs(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.recv_object(1, tag=3)
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


@spmd(world_size=2)
async def scene_rank_1_leaves_with_0(pg: ProcessGroup) -> None:
    if pg.rank == 1:
        raise SystemExit(0)


@spmd(world_size=2)
async def scene_rank_0_returns(pg: ProcessGroup) -> None:
    if pg.rank:
        await pg.barrier()


@spmd(world_size=1)
async def scene_forgets(pg: ProcessGroup) -> None:
    pg.all_reduce(np.zeros(3))
    await pg.barrier()


@spmd(world_size=1, timeout=4)
async def scene_child_holds_the_output(pg: ProcessGroup) -> None:
    if os.fork() == 0:
        signal.sigwait([signal.SIGUSR2])
        os._exit(0)


def failure(test: Any, **arguments: Any) -> str:
    """What a decorated function fails with."""
    with pytest.raises(RanksFailed) as caught:
        test(**arguments)
    return str(caught.value)


@pytest.mark.slow(COSTLY)
def test_failing_rank_fails_the_test_with_its_traceback_first() -> None:
    title, traceback, rest = failure(scene_rank_1_fails).partition("ValueError: the batch is bad")
    assert title == "rank 1 of 3: "
    assert traceback == "ValueError: the batch is bad"
    lines = rest.splitlines()
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].endswith("in scene_rank_1_fails"), "it begins at the test's line"
    assert lines[3].strip() == 'raise ValueError("the batch is bad")'
    assert lines[4] == "ValueError: the batch is bad", "and ends there"
    assert len(lines) == 6
    assert lines[5].startswith("ranks 0 and 2: GroupAborted: rank 1 aborted the group (")


@pytest.mark.slow("a time limit of four seconds")
def test_hangs_are_killed_with_all_that_the_ranks_do_shown() -> None:
    with ThreadPoolExecutor(2) as threads:  # each takes seconds
        hang = threads.submit(failure, scene_rank_0_hangs)
        outlived = threads.submit(failure, scene_child_holds_the_output)
        lines = hang.result().splitlines()
    assert lines[0].startswith("no end within 4 s: recv_object #0 from rank 1 with tag 3 in world")
    assert lines[0].endswith("for rank 1")
    first, second = (next(n for n, line in enumerate(lines) if line.startswith(f"rank {r},")) for r in (0, 1))
    assert any("recv_object #0 from 1 at test_spmd.py:" in line for line in lines[first:second])
    assert any("in scene_rank_0_hangs" in line for line in lines[first:second])
    assert any("test_spmd.py:" in line and "in stuck_in_here" in line for line in lines[second:])
    assert outlived.result().startswith("no end within 4 s")


def test_expected_exit_codes() -> None:
    scene_rank_1_exits_with(code=3)


@pytest.mark.slow(COSTLY)
def test_system_exit_of_a_rank_fails_the_test() -> None:
    assert failure(scene_rank_1_leaves_with_0).startswith("rank 1 of 2: SystemExit: 0")


def test_forgotten_await_is_shown_at_its_line() -> None:
    lines = failure(scene_forgets).splitlines()
    assert re.search(r"test_spmd.py:\d+$", lines[1])
    assert lines[2].strip().startswith("pg.all_reduce(np.zeros(3))")
    assert lines[3].startswith("ForgottenAwait: never awaited: all_reduce at ")
    assert len(lines) == 4


@pytest.mark.slow(COSTLY)
def test_rank_that_has_returned_is_named_where_others_have_lost_it() -> None:
    lines = failure(scene_rank_0_returns).splitlines()
    assert lines[0].startswith("rank 1 of 2: Peer")
    assert lines[-1] == "rank 0: its function had returned"


def test_other_exit_code_fails() -> None:
    text = failure(scene_rank_1_exits_with, code=4)
    assert text.startswith(
        "rank 1 of 2 exited with 4 before its function had returned; exits= expects that it exits with 3"
    )


@pytest.mark.slow(COSTLY)
def test_rank_that_dies_silently_comes_before_those_that_raise_because_of_it() -> None:
    lines = failure(scene_rank_2_is_killed).splitlines()
    assert lines[0] == "rank 2 of 3 was killed by SIGKILL"
    assert lines[1].startswith("ranks 0 and 1: PeerLost: lost rank 2 (")
    assert len(lines) == 2


def test_first_to_fail_comes_first() -> None:
    def raised(line: str, follows: bool = False) -> Report:
        return Report("failed", line=line, text=f"Traceback: {line}", place="a.py:7", follows=follows)

    outcomes = [
        RankOutcome(0, 1, "", 3, raised("PeerLost", follows=True)),
        RankOutcome(1, 0, "fine", 1),
        RankOutcome(2, -9, "last\nwords", 2),
        RankOutcome(3, 1, "", 4, raised("PeerLost", follows=True)),
    ]
    with pytest.raises(RanksFailed) as caught:
        check(outcomes, {})
    assert str(caught.value).splitlines() == [
        "rank 2 of 4 was killed by SIGKILL",
        "last",
        "words",
        "ranks 0 and 3: PeerLost (a.py:7)",
    ]
    check(outcomes, {0: 1, 2: -9, 3: 1})
    with pytest.raises(RanksFailed, match="rank 1 of 4 exited with 0"):
        check(outcomes, {0: 1, 1: 5, 2: -9, 3: 1})


def test_who_fails_by_itself_comes_before_whom_that_reached() -> None:
    outcomes = [
        RankOutcome(0, 1, "", 1, Report("failed", when=5, line="GroupAborted", follows=True)),
        RankOutcome(1, 1, "", 2, Report("failed", when=9, line="ValueError: bad", place="a.py:7")),
        RankOutcome(2, 1, "", 3, Report("failed", when=8, line="KeyError: 1", place="a.py:9")),
    ]
    put_in_order(outcomes)
    assert [outcome.order for outcome in outcomes] == [3, 2, 1]


def test_a_test_is_skipped_if_a_rank_skips_it_and_none_fails() -> None:
    skips = RankOutcome(0, 1, "", 1, Report("skipped", when=5, line="no device"))
    follows = RankOutcome(1, 1, "", 2, Report("failed", when=6, line="GroupAborted", follows=True))
    fails = RankOutcome(1, 1, "", 2, Report("failed", when=7, line="ValueError: bad"))
    with pytest.raises(pytest.skip.Exception, match=r"^rank 0: no device$"):
        check([skips, follows], {}, reported=True)
    with pytest.raises(pytest.skip.Exception, match=r"^no device$"):
        check([skips, replace(skips, rank=1)], {}, reported=True)
    with pytest.raises(RanksFailed, match="rank 1 of 2: ValueError: bad"):
        check([skips, fails], {}, reported=True)
    with pytest.raises(pytest.xfail.Exception, match=r"^rank 0: known$"):
        check([replace(skips, report=Report("xfailed", line="known")), follows], {}, reported=True)


@pytest.mark.slow(COSTLY)
@settings(deadline=None, max_examples=2)
@given(integers())
@spmd(world_size=1)
async def test_examples_of_hypothesis_reach_the_ranks(pg: ProcessGroup, number: int) -> None:
    assert type(number) is int


def test_given_below_is_refused() -> None:
    with pytest.raises(TypeError, match="below has @given below @spmd: put @given above it"):

        @spmd
        @given(integers())
        async def below(pg: ProcessGroup, number: int) -> None: ...


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


async def no_group(group: ProcessGroup) -> None:
    pass


async def many(pg: ProcessGroup, *args: int) -> None:
    pass


async def generator(pg: ProcessGroup) -> Any:
    yield pg


def plain(pg: ProcessGroup) -> None:
    pass


class Tests:
    @spmd
    async def method(self, pg: ProcessGroup, word: str = "default") -> None:
        pass

    async def without_group(self, word: str) -> None:
        pass

    async def without_self(pg: ProcessGroup) -> None:  # type: ignore[misc]  # noqa: N805
        pass


async def outer() -> Any:
    async def inner(pg: ProcessGroup) -> None:
        pass

    return inner


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_group, "no_group must take the process group as its first argument, `pg`; it has (group)"),
        (Tests.without_group, "must take the process group after `self`, `pg`; it has (self, word)"),
        (many, "many: ranks are given arguments by name, and *args"),
        (generator, "generator has a yield: a test cannot be a generator"),
        (plain, "plain is not a coroutine function: write `async def plain(pg, …)`"),
        (lambda pg: None, "<lambda> is not a coroutine function"),
        (asyncio.run(outer()), "outer.<locals>.inner is defined inside a function, where the processes"),
        (staticmethod(no_group), "@spmd stands below @staticmethod on no_group"),
        (Tests, "@spmd wants an async function, got Tests: decorate each test, not a class"),
        (
            Tests.without_self,
            "Tests.without_self is a method without `self`: write `async def without_self(self",
        ),
        (Tests.method, "Tests.method has @spmd twice"),
    ],
)
def test_functions_that_ranks_could_not_call(function: Any, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)) as caught:
        spmd()(function)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": 0}, "world_size=0 must be the number of processes, 1 or more"),
        ({"world_size": True}, "world_size=True must be"),
        ({"timeout": 0}, "timeout=0 must be seconds, more than 0"),
        ({"transport": "udp"}, "transport='udp' must be 'auto', 'shm' or 'tcp'"),
        ({"hosts": 3}, "hosts=3 must be from 1 to world_size, 2"),
        ({"exits": {2: -9}}, "exits=[2] must be exit codes by rank, and ranks go to 1"),
        ({"backend": None}, "backend=None must be a string"),
        ({"exits": [1]}, "exits=[1] must be a mapping, such as {1: -9}"),
        ({"exits": {1: "9"}}, "exits='9' must be exit codes by rank, and codes are integers"),
        ({"env": {"A": 1}}, "env['A']=1 must be a string, '1'"),
        ({"env": "A=1"}, "env='A=1' must be a mapping"),
    ],
)
def test_options_without_a_meaning(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        spmd(**options)


def test_names_that_are_nearly_right() -> None:
    with pytest.raises(TypeError, match="spmd has no argument 'nprocs': write world_size=…"):
        spmd(nprocs=0)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no argument 'wait': it takes world_size, transport, timeout, exits"):
        spmd(wait=3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="scene_child_holds_the_output: world_size='4' must be the number"):
        scene_child_holds_the_output(world_size="4")
    with pytest.raises(TypeError, match="takes its arguments by name"):
        scene_rank_1_exits_with(3, 4)


def test_what_pytest_sees() -> None:
    assert list(inspect.signature(scene_rank_1_exits_with).parameters) == ["code"]
    assert list(inspect.signature(Tests.method).parameters) == ["self", "word"]


async def test_not_inside_a_loop() -> None:
    with pytest.raises(UsageError, match="scene_rank_1_fails was called where an event loop runs"):
        scene_rank_1_fails()
