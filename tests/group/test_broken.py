"""What breaks a group, in one process: mismatch, timeout, abort, departure. All are told who and what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.types import AS, Kind
from aiodist.base.types import Call as Issued
from aiodist.group import ProcessGroup
from aiodist.group.control.inquiry import Absence
from aiodist.group.requests import NO_DATA, internal
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.helpers import core_of, error_of, host_of


def f32(count: int = 4) -> Any:
    return np.zeros(count, np.float32)


Call = Callable[[ProcessGroup], Awaitable[Any]]


def _gather_all(pg: ProcessGroup) -> Awaitable[Any]:
    return pg.all_gather_object(2)


def _least(pg: ProcessGroup) -> Awaitable[Any]:
    return pg.all_reduce(np.ones(1, np.uint8), dist.ReduceOp.MIN)


MISMATCHES: list[tuple[str, Call, Call]] = [
    ("shape", lambda pg: pg.all_reduce(f32(4)), lambda pg: pg.all_reduce(f32(5))),
    ("large shape", lambda pg: pg.all_reduce(f32(400_000)), lambda pg: pg.all_reduce(f32(500_000))),
    ("order of axes", lambda pg: pg.all_reduce(np.zeros((2, 3))), lambda pg: pg.all_reduce(np.zeros((3, 2)))),
    ("dtype", lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_reduce(np.zeros(4, np.int32))),
    ("reduce op", lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_reduce(f32(), dist.ReduceOp.MAX)),
    ("operation", lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_gather(f32())),
    ("barrier", lambda pg: pg.barrier(), lambda pg: pg.all_reduce(f32())),
    ("all wait", lambda pg: pg.broadcast(f32(), 0), lambda pg: pg.broadcast(f32(), 1)),
    ("members", lambda pg: pg.new_group([0]), lambda pg: pg.new_group([0, 1])),
]


@pytest.mark.parametrize(("what", "most", "one"), MISMATCHES, ids=[case[0] for case in MISMATCHES])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_mismatch_is_told_on_every_rank_with_who_said_what(
    what: str, most: Call, one: Call, odd: int
) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        # A rank that only sends may have ended its operation well; the next one tells it.
        first = (one if pg.rank == odd else most)(pg)
        try:
            await first
        except dist.CollectiveMismatch as caught:
            error: BaseException = caught
        else:
            error = await error_of(pg.barrier())
        assert isinstance(error, dist.CollectiveMismatch), error
        assert len(error.said) >= 2
        assert len(set(error.said.values())) > 1
        assert f"rank {odd}: {error.said[odd]}" in str(error)
        with pytest.raises(dist.CollectiveMismatch):
            await pg.barrier()

    run_virtual(run_cluster(3, main))


NAMED: list[tuple[str, Call, str, Call]] = [
    ("all_reduce(float32[4], SUM)", lambda pg: pg.all_reduce(f32()), "all_gather_object()", _gather_all),
    ("gather_object(dst=1)", lambda pg: pg.gather_object(1, dst=1), "all_gather_object()", _gather_all),
    ("split()", lambda pg: pg.split(0), "all_gather_object()", _gather_all),
    ("agree()", lambda pg: pg.agree(), "all_reduce(uint8[1], MIN)", _least),
]


@pytest.mark.parametrize(("words", "most", "others", "one"), NAMED, ids=[case[0] for case in NAMED])
def test_mismatch_names_the_users_calls_lines_and_numbers(
    words: str, most: Call, others: str, one: Call
) -> None:
    async def main(pg: ProcessGroup) -> None:
        for _ in range(2):  # two steps each
            await pg.all_gather_object("x")
        await pg.all_reduce(f32())
        error = await error_of((one if pg.rank == 1 else most)(pg))
        assert isinstance(error, dist.CollectiveMismatch), error
        assert error.said == {0: words, 1: others, 2: words}
        assert error.seq == 4
        assert error.op == error.said[pg.rank].partition("(")[0]
        assert sorted(error.places) == [0, 1, 2]
        assert all(re.fullmatch(r"tests/\S+\.py:\d+", place) for place in error.places.values())

    run_virtual(run_cluster(3, main))


def test_point_to_point_mismatch_names_both_sides() -> None:
    async def main(pg: ProcessGroup) -> None:
        error = await error_of(pg.send(f32(4), 1) if pg.rank == 0 else pg.recv(f32(5), 0))
        if isinstance(error, dist.CollectiveMismatch):
            assert error.said == {
                0: "send(float32[4], dst=1, tag=0, number=0)",
                1: "recv(float32[5], src=0, tag=0, number=0)",
            }

    async def first_sent_then_posted(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            await pg.send(f32(4), 1)  # small: done before its match
        else:
            await asyncio.sleep(1)
            assert isinstance(await error_of(pg.recv(np.zeros(4), 0)), dist.CollectiveMismatch)
        assert isinstance(await error_of(pg.barrier()), dist.CollectiveMismatch)

    async def large(pg: ProcessGroup) -> None:
        call = pg.send(f32(40_000), 1) if pg.rank == 0 else pg.recv(f32(50_000), 0)
        error = await error_of(call)
        assert isinstance(error, dist.CollectiveMismatch)
        assert error.said == {
            0: "send(float32[40000], dst=1, tag=0, number=0)",
            1: "recv(float32[50000], src=0, tag=0, number=0)",
        }

    run_virtual(run_cluster(2, first_sent_then_posted))
    run_virtual(run_cluster(2, large))


def test_timeout_names_who_had_not_arrived() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 2:
            await asyncio.sleep(6)
            assert isinstance(await error_of(pg.barrier()), dist.CollectiveTimeout)
            return
        began = asyncio.get_running_loop().time()
        error = await error_of(pg.all_reduce(f32(), timeout=3))
        assert isinstance(error, dist.CollectiveTimeout)
        assert isinstance(error, TimeoutError)
        assert error.missing == (2,)
        assert (error.op, error.seq, error.group) == ("all_reduce", 1, "world")
        assert "rank 2 had not arrived" in str(error)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.3)

    run_virtual(run_cluster(4, main))


def test_timeout_of_a_message_says_of_the_other_side_what_is_known() -> None:
    async def main(pg: ProcessGroup, quiet: bool, known: str) -> None:
        await pg.barrier()
        control: Any = core_of(pg).control
        control.quiet = lambda rank: quiet
        call = pg.recv(f32(), 1, timeout=2) if pg.rank == 0 else pg.recv(f32(), 0)
        error = await error_of(call)
        assert isinstance(error, dist.CollectiveTimeout)
        assert (error.missing, error.unheard) == (((), (1,)) if quiet else ((1,), ()))
        assert ("of waiting for rank 1, this process" if pg.rank else f"rank 1 {known}") in str(error)
        assert not pg.rank or "had not arrived" not in str(error)

    run_virtual(run_cluster(2, partial(main, quiet=False, known="had not arrived")))
    run_virtual(run_cluster(2, partial(main, quiet=True, known="did not answer")))


def test_timeout_of_a_message_from_anybody_accuses_nobody() -> None:
    async def main(pg: ProcessGroup) -> None:
        error = await error_of(pg.recv(f32(), 0) if pg.rank else pg.recv(f32(), timeout=2))
        assert isinstance(error, dist.CollectiveTimeout)
        assert (error.missing, error.unheard) == ((), ())
        assert "no matching send or recv was seen" in str(error)

    run_virtual(run_cluster(2, main))


def test_who_was_busy_says_so_of_itself_and_nothing_else() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            watch: Any = core_of(pg)._watch
            watch.absent[1] = Absence((), (0,))  # the leader had no answer of this rank
            operation: Any = type("Operation", (), {"call": Issued(Kind.barrier, 1, NO_DATA[0], NO_DATA[1])})
            error = watch.expired(operation, 3.0, 6.04)
            assert (error.missing, error.unheard) == ((), ())
            assert (
                f"all ranks had arrived; rank 0 ({pg.hosts[0]}) had not run its own event loop for 6.0 s"
                in str(error)
            )
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_late_judgement_hears_first_what_lies_in_the_sockets() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            watch: Any = core_of(pg)._watch
            control: Any = core_of(pg).control
            heard: list[str] = []
            judged: list[str] = []
            control.hear = lambda: heard.append("here")
            watch._later(0.1, lambda: judged.append(heard.pop()))
            await asyncio.sleep(1)
            assert judged == ["here"]
            control.hear = watch.stop_asking  # what is heard ends the group: there is nothing left to judge
            watch._later(0.1, lambda: judged.append("too late"))
            await asyncio.sleep(1)
            assert judged == ["here"]
            del control.hear
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_patience_of_one_awaiter_breaks_nothing() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            work = pg.all_reduce(np.array([1]), async_op=True)
            with pytest.raises(TimeoutError):
                await work.wait(0.5)
            assert not work.done()
            assert (await work)[0] == 3
        else:
            await asyncio.sleep(2)
            assert (await pg.all_reduce(np.array([2])))[0] == 3

    run_virtual(run_cluster(2, main))


def test_cancelled_awaiter_cancels_no_collective() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.array([pg.rank + 1])
        if pg.rank == 0:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pg.all_reduce(tensor), 0.1)
        else:
            await asyncio.sleep(1)
            assert (await pg.all_reduce(tensor))[0] == 3
        await pg.drain()
        assert tensor[0] == 3
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_abort_reaches_everybody_with_the_reason() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await asyncio.sleep(0.5)
            pg.abort("the disk is full")
        error = await error_of(pg.all_reduce(f32()))
        assert isinstance(error, dist.GroupAborted)
        assert (error.rank, error.reason) == (1, "the disk is full")

    run_virtual(run_cluster(4, main))


def test_leaving_by_an_exception_aborts_with_it() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 1:
            raise ValueError("bad batch")
        error = await error_of(pg.all_reduce(f32()))
        assert isinstance(error, dist.GroupAborted)
        assert error.reason == "ValueError: bad batch"

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(run_cluster(3, main))
    assert [type(error) for error in caught.value.exceptions] == [ValueError]


def test_member_that_closed_is_named_at_once() -> None:
    async def main(pg: ProcessGroup) -> None:
        child = await pg.new_group()
        assert child is not None
        await child.barrier()
        if pg.rank == 1:
            await child.aclose()
            await asyncio.sleep(1)
            return
        error = await error_of(child.all_reduce(f32()))
        assert isinstance(error, dist.PeerLost)
        assert error.ranks == (1,)
        assert "closed the group" in str(error)
        assert asyncio.get_running_loop().time() < 0.5
        await asyncio.sleep(1)

    run_virtual(run_cluster(3, main))


def test_early_leaver_does_not_disturb_those_who_need_it_no_more() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.arange(50_000) + pg.rank
        await pg.broadcast(tensor, 0)  # rank 0 ends first, and closes at once
        assert tensor[0] == 0

    run_virtual(run_cluster(5, main))


def test_a_broken_subgroup_leaves_the_others_whole() -> None:
    async def main(pg: ProcessGroup) -> None:
        pair = await pg.new_group([0, 1])
        if pair is not None:
            if pg.rank == 0:
                pair.abort("only here")
            assert isinstance(await error_of(pair.barrier()), dist.GroupAborted)
        assert (await pg.all_reduce(np.array([pg.rank])))[0] == 3

    run_virtual(run_cluster(3, main))


def test_lost_peer_breaks_only_its_groups() -> None:
    async def main(pg: ProcessGroup) -> str:
        pair = await pg.new_group([0, 1])
        await pg.barrier()
        if pg.rank == 2:
            host_of(pg).resources.endpoint.kill()
            core_of(pg).control.kill()
            raise KeyboardInterrupt
        error = await error_of(pg.all_reduce(f32()))
        assert isinstance(error, dist.PeerLost)
        assert error.ranks == (2,)
        assert pair is not None
        assert (await pair.all_reduce(np.array([pg.rank + 1])))[0] == 3
        return "survived"

    async def guarded(pg: ProcessGroup) -> str:
        try:
            return await main(pg)
        except KeyboardInterrupt:
            return "died"

    assert run_virtual(run_cluster(3, guarded)) == ["survived", "survived", "died"]


def test_a_world_that_ends_by_an_exception_takes_its_subgroups_with_it() -> None:
    async def main(pg: ProcessGroup) -> None:
        pair = await pg.new_group([0, 1])
        if pg.rank == 1:
            raise ValueError("bad batch")
        if pair is not None:
            error = await error_of(pair.all_reduce(f32()))
            assert isinstance(error, dist.GroupAborted)
            assert error.reason == "ValueError: bad batch"

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(run_cluster(3, main))
    assert [type(error) for error in caught.value.exceptions] == [ValueError]


def test_closing_the_world_closes_its_subgroups_gracefully() -> None:
    kept: list[ProcessGroup] = []

    async def main(pg: ProcessGroup) -> None:
        child = await pg.new_group()
        assert child is not None
        kept.append(child)
        tensor = np.arange(30_000) * (pg.rank + 1)
        works.append(child.all_reduce(tensor, async_op=True))

    works: list[Any] = []
    run_virtual(run_cluster(3, main))
    assert all(work.is_success() for work in works)
    assert all(np.array_equal(work.result(), np.arange(30_000) * 6) for work in works)


def test_leaving_a_broken_world_raises_its_error_and_closes() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            pg.abort("first")
            pg.abort("second")  # the first cause stays
        error = await error_of(pg.barrier())
        assert isinstance(error, dist.GroupAborted)
        assert error.reason == "first"
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(run_cluster(3, main))
    assert len(caught.value.exceptions) == 3


@pytest.mark.parametrize("count", [10, 4_000_000])
async def test_bulk_work_that_fails_breaks_the_group_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def no_memory(*args: object, **kwargs: object) -> None:
        raise MemoryError("no room")

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        monkeypatch.setattr("aiodist.backends.buffers.finish", no_memory)
        error = await error_of(pg.all_reduce(f32(count), dist.ReduceOp.AVG))
        assert isinstance(error, dist.GroupBroken)
        assert "MemoryError: no room" in str(error)

    await run_cluster(2, main)


async def test_memory_that_runs_out_in_the_call_breaks_the_group_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issued = asyncio.Event()

    def no_memory(*args: object) -> None:
        raise MemoryError("no room")

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            work = pg.all_reduce(f32(), async_op=True)
            issued.set()
        else:
            await issued.wait()
            monkeypatch.setattr("aiodist.backends.host.backend.chunks", no_memory)
            work = pg.all_reduce(f32(), async_op=True)
        error = await error_of(work)
        assert isinstance(error, dist.GroupBroken)
        assert "rank 1 failed inside: MemoryError: no room" in str(error)

    await run_cluster(2, main)


@pytest.mark.parametrize("large", [False, True])
async def test_a_fault_in_a_later_step_breaks_the_group_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """In a callback after a copy in the thread, or after a message: nobody but the group would hear of it."""
    count = 3_000_000 if large else 10

    def fault(*args: object) -> None:
        raise RuntimeError("out of order")

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        work = pg.all_reduce(f32(count), out=f32(count), async_op=True)
        monkeypatch.setattr("aiodist.backends.host.wired.Collective._advance", fault)
        error = await error_of(work)
        assert isinstance(error, dist.GroupBroken)
        assert "RuntimeError: out of order" in str(error)

    async def threaded(pg: ProcessGroup) -> None:
        host_of(pg).resources.offload.inline = False
        await main(pg)

    await run_cluster(1 if large else 2, threaded)


@pytest.mark.parametrize("claim", [-5, 1 << 60])
async def test_a_member_that_claims_an_impossible_size_breaks_the_group(claim: int) -> None:
    """Not one Work alone: the second step has its number, and others wait for it."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            frame = np.zeros(1024, np.uint8)
            frame[:8].view(np.int64)[:] = claim
            await core_of(pg).issue(
                internal(Kind.broadcast, frame, root=0, detail=f"{AS}broadcast_object(src=0)"), 5, True
            )
            core_of(pg).reserve()
        else:
            with pytest.raises(dist.GroupBroken, match="has no memory for objects of"):
                await pg.broadcast_object(src=0)
        with pytest.raises(dist.GroupBroken, match="has no memory for objects of"):
            await pg.barrier()

    await run_cluster(3, main)


def test_several_that_left_early_are_named_together() -> None:
    async def main(pg: ProcessGroup) -> None:
        child = await pg.new_group(timeout=20)
        assert child is not None
        await pg.barrier()
        if pg.rank in (1, 2):
            await child.aclose()
        await pg.barrier()
        if pg.rank == 0:
            await asyncio.sleep(1)  # the goodbyes of both are here
            error = await error_of(child.all_reduce(f32()))
            assert "lost ranks 1 and 2: they closed the group while others still needed them" in str(error)
            assert "see where those ranks leave the group" in str(error)

    run_virtual(run_cluster(3, main))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_roots_that_disagree_in_the_last_operation_are_found_at_the_end(late: int) -> None:
    """Over channels nobody looks at others: what they have sent says it, while the group is closed."""

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        await pg.broadcast(f32(), pg.rank)  # each is a root, and waits for nobody
        if pg.rank == late:
            await asyncio.sleep(0.01)
        with pytest.raises(dist.CollectiveMismatch, match="broadcast") as caught:
            await pg.aclose()
        said = caught.value.said
        assert len(said) > 1
        assert all(text.startswith(f"broadcast(float32[4], src={rank})") for rank, text in said.items())

    run_virtual(run_cluster(3, main))


def test_a_root_that_all_agree_with_closes_soon() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.broadcast(f32(), 0)
        await pg.aclose()

    run_virtual(run_cluster(3, main))
