"""Processes under the thumb: killed, stopped, crashed at a step; and those that hang are found."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from tests.levels import COSTLY
from tests.support.channel_pair import turn_until
from tests.support.faults import RoundFailed, Stage, Victims


async def reduce_forever(stage: Stage, count: int = 100) -> dict[str, Any]:
    """Until a peer is lost."""
    pg = await stage.join()
    try:
        while True:
            await pg.all_reduce(np.ones(count))
            stage.say("running", pid=os.getpid())
    except dist.PeerLost as error:
        return {"ranks": error.ranks, "pid": os.getpid()}
    finally:
        pg.abort("over")
        await pg.aclose()


async def add(stage: Stage, extra: int, more: int = 0) -> int:
    """The sum over the job."""
    async with await stage.join() as pg:
        tensor = await pg.all_reduce(np.array([stage.rank + extra + more]))
        return int(tensor[0])


async def wait_for_words(stage: Stage) -> list[str]:
    """Until 'go'."""
    words: list[str] = []
    stage.say("waits")
    while "go" not in words:
        words += stage.told()
        await asyncio.sleep(0.001)
    return words


async def fail(stage: Stage) -> None:
    """Nothing else."""
    raise ValueError(f"rank {stage.rank} cannot")


async def hang(stage: Stage) -> None:
    """One does, the other does not."""
    if stage.rank == 1:
        await asyncio.Event().wait()


async def crash_in(stage: Stage, point: str, count: int) -> None:
    """Rank 0 crashes at a step of an operation."""
    async with await stage.join() as pg:
        await pg.barrier()
        if stage.rank == 0:
            stage.crash(point, count)
        try:
            for _ in range(3):
                await pg.all_reduce(np.ones(10))
                stage.say("reduced")
        except dist.PeerLost as error:
            stage.say("lost", ranks=error.ranks)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_survivors_report_and_live_on_into_the_next_round(transport: str) -> None:
    async with Victims(transport=transport) as victims:
        pids: set[int] = set()
        for victim in (1, 0):
            async with victims.round(reduce_forever, 3) as round:
                await round.all_say("running", times=2)
                assert round.alive == [0, 1, 2]
                died = round.kill(victim)
                outcomes = await round.outcomes()
            dead = outcomes[victim]
            assert dead is not None
            assert dead.what == "died"
            for rank in {0, 1, 2} - {victim}:
                outcome = outcomes[rank]
                assert outcome is not None
                assert outcome.value["ranks"] == [victim]
                assert outcome.at > died
                pids.add(outcome.value["pid"])
        assert len(pids) == 3  # two survivors of each round, one of whom survived both


@pytest.mark.slow(COSTLY)
async def test_arguments_for_all_and_for_each() -> None:
    async with (
        Victims() as victims,
        victims.round(add, 2, each=lambda rank: {"more": rank}, extra=5) as round,
    ):
        outcomes = await round.outcomes()
    assert [outcome.value for outcome in outcomes.values() if outcome] == [12, 12]


@pytest.mark.slow(COSTLY)
async def test_words_reach_those_who_ask() -> None:
    async with Victims() as victims, victims.round(wait_for_words, 2) as round:
        await round.all_say("waits")
        round.tell("one", [0])
        round.tell("go")
        outcomes = await round.outcomes()
        assert [outcome.value for outcome in outcomes.values() if outcome] == [["one", "go"], ["go"]]
        late = round.add()
        round.tell("go", [late])
        assert (await round.outcomes([late]))[late] is not None


@pytest.mark.slow(COSTLY)
async def test_stop_and_resume() -> None:
    async with Victims() as victims, victims.round(wait_for_words, 1) as round:
        await round.all_say("waits")
        round.stop(0)
        round.tell("go")
        assert await round.outcomes(within=0.3) == {0: None}
        round.resume(0)
        outcomes = await round.outcomes()
        assert outcomes[0] is not None


@pytest.mark.slow(COSTLY)
async def test_a_function_that_raises_ends_with_its_words() -> None:
    async with Victims() as victims, victims.round(fail, 2) as round:
        outcomes = await round.outcomes()
        assert outcomes[1] is not None
        assert outcomes[1].error == "ValueError: rank 1 cannot"
        with pytest.raises(RoundFailed, match=r"ranks \[0, 1\] never said 'running'(.|\n)*rank 1 cannot"):
            await round.all_say("running")


@pytest.mark.slow(COSTLY)
async def test_who_hangs_is_told_with_its_stack() -> None:
    async with Victims() as victims:
        async with victims.round(hang, 2) as round:
            assert (await round.outcomes([0], within=60))[0] is not None
            assert await round.outcomes([1], within=0.1) == {1: None}
            await turn_until(lambda: "most recent call first" in round.report())
            pid = round.pid(1)
        with pytest.raises(ProcessLookupError):  # a hanging process is not used again
            os.kill(pid, 0)


async def test_crash_at_a_named_step() -> None:
    point = "aiodist.group.process_group:ProcessGroup.all_reduce"
    async with Victims() as victims, victims.round(crash_in, 2, point=point, count=2) as round:
        outcomes = await round.outcomes()
        assert outcomes[0] is not None
        assert outcomes[0].what == "died"
        assert len(round.heard("reduced", 0)) == 1
        assert [said.facts["ranks"] for said in round.heard("lost")] == [[0]]
        [dies] = round.heard("dies")
        assert dies.at < round.heard("lost")[0].at


@pytest.mark.slow(COSTLY)
async def test_crash_at_a_number_of_calls() -> None:
    async with Victims() as victims, victims.round(crash_in, 2, point="", count=1) as round:
        outcomes = await round.outcomes()
        assert outcomes[0] is not None
        assert outcomes[0].what == "died"
        assert not round.heard("reduced", 0)


@pytest.mark.slow(COSTLY)
async def test_rank_0_may_have_the_store() -> None:
    async with Victims() as victims, victims.round(add, 3, rank_0_has_store=True, extra=0) as round:
        outcomes = await round.outcomes()
        assert [outcome.value for outcome in outcomes.values() if outcome] == [3, 3, 3]


@pytest.mark.slow(COSTLY)
async def test_connections_lead_through_proxies() -> None:
    async with (
        Victims(transport="tcp") as victims,
        victims.round(reduce_forever, 3, detours=True, count=100_000) as round,
    ):
        assert round.detours is not None
        await round.all_say("running", times=3)
        proxies = round.detours.of(range(3), range(3))
        assert len(proxies) == 6
        assert sum(proxy.forth.passed for proxy in proxies) > 1_000_000
        for proxy in round.detours.of([1]):
            proxy.cut()
        outcomes = await round.outcomes()
        assert None not in outcomes.values()
        assert 1 in {rank for o in outcomes.values() if o and o.value for rank in o.value["ranks"]}
