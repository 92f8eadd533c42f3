"""Groups of several ranks on each of several hosts, in one process: right, alike, and told of harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiodist as dist
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.host.hierarchy import Hierarchy
from aiodist.backends.host.local.board import SLOTS, TOOK
from aiodist.backends.host.steps import APART, STEPS, goes_by_hosts
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import BFLOAT16, Kind
from aiodist.group import ProcessGroup
from aiodist.group.requests import Op
from aiodist.testing import run_cluster, run_virtual
from aiodist.testing.conformance_backend import check_backend, check_concurrent, check_program
from aiodist.testing.issued import perform
from aiodist.testing.programs import operations, program
from aiodist.transport import SocketEndpoint
from aiodist.transport.memory import MemoryNetwork
from tests.helpers import core_of, host_of
from tests.levels import COSTLY, MORE, few

Main = Callable[[ProcessGroup], Awaitable[Any]]

ALL = Thresholds(hierarchy=1, inline=512)  # pieces of 1 KiB
TINY = Thresholds(hierarchy=1, direct=64, inline=512, block=4096, staging=4096, depth=2)
ROOTS = {"aabb": 0, "abba": 1}  # the column of rank 2
LAYOUTS = ["aabb", "abab", "abba", "aaabbb", "aabbcc", "abcabc", "abccba"]


def simulated(hosts: str, main: Main, limits: Thresholds = ALL, seed: int | None = None) -> list[Any]:
    """Run ranks on pretended hosts in virtual time; with a seed, over a network of random delays."""
    rng = np.random.default_rng(seed)
    delay = None if seed is None else lambda src, dst: float(rng.exponential(0.01))
    network = MemoryNetwork(delay=delay, hosts=hosts)
    return run_virtual(run_cluster(len(hosts), main, network=network, limits=limits, timeout=60))


async def connected(hosts: Sequence[str], main: Main, limits: Thresholds = TINY) -> list[Any]:
    """Run ranks over sockets, and through shared memory where they pretend to be on one host."""
    loop = asyncio.get_running_loop()

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(loop, rank, "job", b"", boot=hosts[rank])

    return await run_cluster(len(hosts), main, endpoint=endpoint, limits=limits)


def hierarchy(pg: ProcessGroup) -> Hierarchy:
    """The group's hierarchy, which it must have."""
    found = host_of(pg).hierarchy
    assert isinstance(found, Hierarchy)
    return found


def taken(pg: ProcessGroup) -> int:
    """How many internal operations there were on this rank's host."""
    return hierarchy(pg).grid.inner.issued


# ── right ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosts", few(LAYOUTS, ["abab"]))
def test_conformance(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await check_backend(pg, seed=pg.size)
        assert taken(pg) > 50

    simulated(hosts, main)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosts", few(["aabb", "aaabbb", "abcabc"], ["aabb"]))
async def test_conformance_over_sockets_and_shared_memory(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await check_backend(pg, seed=pg.size)
        inner = hierarchy(pg).grid.inner.backend
        assert isinstance(inner, HostBackend)
        assert inner.local is not None

    await connected(hosts, main)


@pytest.mark.slow(MORE)
@settings(max_examples=10, deadline=None)
@given(hosts=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32))
def test_random_programs_whatever_comes_first(hosts: str, seed: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        await check_program(pg, seed, 10)
        await check_concurrent(pg, seed + 1, 30)

    simulated(hosts, main, seed=seed)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosts", few(["aabb", "aabbcc"], ["aabb"]))
async def test_random_programs_over_sockets(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        kinds = tuple(STEPS)
        for seed in range(2):
            for step in program(700 + seed, pg.size, 30, kinds, big=40_000):
                await perform(pg, step)
            await check_concurrent(pg, 800 + seed, 60)

    await connected(hosts, main)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    "dtype",
    few([np.float16, BFLOAT16, np.float32, np.float64, np.complex64], [BFLOAT16]),
    ids=str,
)
async def test_all_ranks_get_the_same_bits(dtype: Any) -> None:
    async def main(pg: ProcessGroup) -> None:
        rng = np.random.default_rng(pg.rank)
        for count in (1, 2, 7, 1000, 50_001):
            kind = np.dtype(dtype)
            ops: list[Op] = [*operations(kind), dist.premul_sum(0.3 * (pg.rank + 1))]
            for op in ops:
                mine = np.empty(count + pg.rank, kind)[pg.rank :]
                mine[:] = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)).astype(kind)
                mine[::5] = np.nan
                await pg.all_reduce(mine, op)
                rows = await pg.all_gather(mine)
                assert all(row.tobytes() == mine.tobytes() for row in rows)

    await connected("aabb", main)


def test_an_average_divides_once_and_a_factor_counts_once() -> None:
    async def main(pg: ProcessGroup) -> None:
        for count in (4, 5, 999):
            mean = await pg.all_reduce(np.full(count, 3.0 * pg.rank), dist.ReduceOp.AVG)
            assert np.array_equal(mean, np.full(count, 7.5))
            mine = np.arange(count) * (pg.rank + 1.0)
            out = np.empty(count)
            await pg.all_reduce(mine, dist.premul_sum(0.5 * (pg.rank + 1)), out)
            assert np.array_equal(mine, np.arange(count) * (pg.rank + 1.0))
            assert np.array_equal(out, np.arange(count) * sum(0.5 * (r + 1) ** 2 for r in range(6)))

    simulated("aaabbb", main)


@pytest.mark.parametrize("hosts", ["aabb", "abba"])
def test_every_kind_goes_by_it(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        whole = np.arange(16.0) + 100 * pg.rank
        mine = whole[:4].copy()
        calls: dict[Kind, Callable[[], Awaitable[Any]]] = {
            Kind.all_reduce: lambda: pg.all_reduce(whole.copy()),
            Kind.reduce: lambda: pg.reduce(whole.copy(), 2),
            Kind.reduce_scatter: lambda: pg.reduce_scatter(whole),
            Kind.broadcast: lambda: pg.broadcast(whole.copy(), 2),
            Kind.scatter: lambda: pg.scatter(mine.copy(), whole if pg.rank == 2 else None, 2),
            Kind.gather: lambda: pg.gather(mine, 2),
            Kind.all_gather: lambda: pg.all_gather(mine),
            Kind.all_to_all: lambda: pg.all_to_all(whole),
        }
        assert set(calls) == set(STEPS)
        for kind, call in calls.items():
            before = hierarchy(pg).grid.outer.issued
            await call()
            took = hierarchy(pg).grid.outer.issued - before
            assert took == (
                1 if kind is not Kind.broadcast or hierarchy(pg).grid.column == ROOTS[hosts] else 0
            )

    simulated(hosts, main)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32], ids=str)
def test_an_average_of_several_axes_is_dealt_out(dtype: Any) -> None:
    async def main(pg: ProcessGroup) -> None:
        mine = (np.arange(4 * 6 * 5).reshape(4 * 6, 5) % 7 + pg.rank).astype(dtype)
        part = await pg.reduce_scatter(mine, op=dist.ReduceOp.AVG)
        expected = (np.arange(4 * 6 * 5).reshape(4, 6, 5) % 7)[pg.rank] + 1.5
        assert np.array_equal(part.astype(float), expected)

    simulated("aabb", main)


async def test_arrays_of_every_kind_of_memory() -> None:
    async def main(pg: ProcessGroup) -> None:
        for count in (6, 12_000, 12_001):
            shared = pg.empty(count)
            shared[:] = np.arange(count) + pg.rank
            await pg.all_reduce(shared)
            assert np.array_equal(shared, np.arange(count, dtype=np.float32) * 6 + 15)
            wide = np.zeros((count, 2), np.float32)
            view = wide[:, 1]
            view[:] = pg.rank
            await pg.broadcast(view, 4)
            assert np.array_equal(wide, np.tile(np.array([0, 4], np.float32), (count, 1)))

    await connected("aaabbb", main)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("dtype", few([np.uint8, np.int8, np.bool_], [np.uint8]), ids=str)
@pytest.mark.parametrize("hosts", few(["aabb", "aaabbb"], ["aabb"]))
async def test_pieces_are_cut_at_any_byte(hosts: str, dtype: Any) -> None:
    """Strided arrays are staged in the segment: pieces at odd bytes of it come without `pg.empty`, too."""

    async def main(pg: ProcessGroup) -> None:
        size, members = pg.size, range(pg.size)
        for count in (1023, 4099, 50_001):
            of = [((np.arange(2 * count) * 7 + 3 * rank) % 11 % 5).astype(dtype) for rank in members]
            total = np.sum([row.astype(np.int64) for row in of], 0).astype(dtype)

            def laid_out(kind: str, array: Any = of[pg.rank]) -> Any:
                if kind == "fortran":
                    return np.asfortranarray(array.reshape(2, -1))
                if kind == "strided":
                    wide = np.zeros((array.size, 3), dtype)
                    wide[:, 1] = array
                    return wide[:, 1]
                raw = pg.empty(array.size + 1, dtype)
                raw[1:] = array
                return raw[1:] if kind == "odd" else raw[1 : array.size]  # an odd length, too

            for kind in ("fortran", "strided", "odd", "shorter"):
                mine = laid_out(kind)
                want = [row[: mine.size] for row in of]
                tensor = laid_out(kind)
                await pg.broadcast(tensor, size - 1)
                assert np.array_equal(tensor.reshape(-1), want[-1])
                tensor = laid_out(kind)
                await pg.all_reduce(tensor)
                assert np.array_equal(tensor.reshape(-1), total[: mine.size])
                rows = await pg.all_gather(mine)
                assert all(np.array_equal(row.reshape(-1), want[rank]) for rank, row in enumerate(rows))

    await connected(hosts, main)


def test_lists_of_tensors() -> None:
    async def main(pg: ProcessGroup) -> None:
        rows = [np.zeros((2, 3)) for _ in range(pg.size)]
        await dist.all_gather(rows, np.full((2, 3), float(pg.rank)))
        assert all(np.array_equal(row, np.full((2, 3), rank)) for rank, row in enumerate(rows))
        assert taken(pg) == 1

    simulated("abba", main)


# ── which way ────────────────────────────────────────────────────────────────────────────────────────


def test_only_from_the_threshold_on() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(np.zeros(1023, np.uint8))
        await pg.all_gather(np.zeros(255, np.uint8))
        assert taken(pg) == 0
        await pg.all_reduce(np.zeros(1024, np.uint8))
        await pg.all_gather(np.zeros(256, np.uint8))
        await pg.broadcast(np.zeros(1024, np.uint8))
        assert taken(pg) == 4

    simulated("aabb", main, Thresholds(hierarchy=1024))


@pytest.mark.parametrize("hosts", ["aaaa", "abcd", "aaab", "aabbc"])
def test_other_layouts_have_none(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        assert host_of(pg).hierarchy is None
        assert (await pg.all_reduce(np.ones(5)))[0] == pg.size

    simulated(hosts, main)


async def test_subgroups_have_their_own_and_leave_nothing() -> None:
    async def main(pg: ProcessGroup) -> None:
        heard_of = host_of(pg).resources.endpoint.takers  # each group in this process takes its messages
        await pg.all_reduce(np.ones(100))
        before = len(heard_of)
        group = await pg.new_group([0, 1, 4, 5])
        if group is not None:
            assert (await group.all_reduce(np.ones(100)))[0] == 4
            assert len(heard_of) == before + 3  # its own, of its host, between hosts
            await group.aclose()
        assert len(heard_of) == before
        await pg.barrier()

    await connected("aaabbb", main)


# ── many at a time ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_objects_batches_and_tensors_at_once(seed: int) -> None:
    """What begins later than it was numbered begins at other times on other ranks."""

    async def main(pg: ProcessGroup) -> None:
        async def batch(base: int) -> None:
            async with pg.coalesce():
                works = [pg.all_reduce(np.full(50, base + i), async_op=True) for i in range(3)]
                await asyncio.sleep(0.01 * (pg.rank + 1))
            for i, work in enumerate(works):
                assert (await work)[0] == pg.size * (base + i)

        batching = asyncio.create_task(batch(10))
        await asyncio.sleep(0)  # it has its numbers
        things = pg.all_gather_object({"of": pg.rank, "text": "x" * 1000 * pg.rank}, async_op=True)
        total = pg.all_reduce(np.arange(100), async_op=True)
        told = pg.broadcast_object(b"y" * 5000 if pg.rank == 2 else None, 2, async_op=True)
        rows = pg.all_gather(np.full(9, pg.rank), async_op=True)
        assert np.array_equal(await total, np.arange(100) * pg.size)
        assert [thing["of"] for thing in await things] == list(range(pg.size))
        assert len(await told) == 5000
        assert [int(row[0]) for row in await rows] == list(range(pg.size))
        await batching

    simulated("aabb", main, seed=seed)


def test_objects_in_a_batch() -> None:
    """Their second step begins when the block has been left long ago."""

    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            things = pg.all_gather_object(pg.rank, async_op=True)
            total = pg.all_reduce(np.ones(100), async_op=True)
        assert (await total)[0] == 4
        assert await things == [0, 1, 2, 3]

    simulated("aabb", main)


def test_pieces_without_an_element() -> None:
    async def main(pg: ProcessGroup) -> None:
        await check_program(pg, 3, 40)

    simulated("aabb", main, Thresholds(hierarchy=1, inline=0))


@pytest.mark.slow(MORE)
async def test_more_in_flight_than_there_are_slots() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensors = [np.full(300, pg.rank + i, np.int64) for i in range(70)]
        works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i, work in reversed(list(enumerate(works))):
            assert (await work)[-1] == 6 + 4 * i
        assert min(hierarchy(pg).grid.outer.issued, taken(pg)) > 3 * SLOTS

    await connected("aabb", main)


# ── harm ─────────────────────────────────────────────────────────────────────────────────────────────


def f32(count: int = 100) -> Any:
    return np.zeros(count, np.float32)


Call = Callable[[ProcessGroup], Awaitable[Any]]
MISMATCHES: dict[str, tuple[Call, Call]] = {
    "shape": (lambda pg: pg.all_reduce(f32(100)), lambda pg: pg.all_reduce(f32(101))),
    "order of axes": (
        lambda pg: pg.all_reduce(np.zeros((20, 30))),
        lambda pg: pg.all_reduce(np.zeros((30, 20))),
    ),
    "below the threshold": (lambda pg: pg.all_reduce(f32(100)), lambda pg: pg.all_reduce(f32(2))),
    "dtype": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_reduce(np.zeros(100, np.int32))),
    "op": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_reduce(f32(), dist.ReduceOp.MAX)),
    "average": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_reduce(f32(), dist.ReduceOp.AVG)),
    "operation": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.all_gather(f32())),
    "wired operation": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.reduce(f32())),
    "barrier": (lambda pg: pg.all_reduce(f32()), lambda pg: pg.barrier()),
    "root": (lambda pg: pg.broadcast(f32(), 0), lambda pg: pg.broadcast(f32(), 1)),
    "root elsewhere": (lambda pg: pg.broadcast(f32(), 0), lambda pg: pg.broadcast(f32(), 3)),
    "gathered": (lambda pg: pg.all_gather(f32(100)), lambda pg: pg.all_gather(f32(101))),
}


async def disagree(pg: ProcessGroup, most: Call, one: Call, odd: int) -> None:
    """Every rank is told what the odd one said, now or by its next operation."""
    await pg.all_reduce(f32())
    try:
        await (one if pg.rank == odd else most)(pg)
    except dist.CollectiveMismatch as caught:
        error = caught
    else:
        with pytest.raises(dist.CollectiveMismatch) as raised:
            await pg.all_reduce(f32())
        error = raised.value
    assert len(set(error.said.values())) > 1
    assert f"rank {odd}: {error.said[odd]}" in str(error)
    with pytest.raises(dist.CollectiveMismatch):
        await pg.barrier()


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("odd", few(range(4), [0, 3]))
def test_a_mismatch_is_told_on_every_rank(what: str, odd: int) -> None:
    most, one = MISMATCHES[what]
    simulated("aabb", lambda pg: disagree(pg, most, one, odd), Thresholds(hierarchy=64))


@pytest.mark.parametrize("what", few(MISMATCHES, ["shape", "below the threshold", "root elsewhere"]))
async def test_a_mismatch_through_shared_memory(what: str) -> None:
    most, one = MISMATCHES[what]
    limits = Thresholds(hierarchy=64, inline=128)
    await connected("aabb", lambda pg: disagree(pg, most, one, 3), limits)


@pytest.mark.parametrize("odd", range(4))
def test_one_operation_too_many_is_a_mismatch(odd: int) -> None:
    """The later operations are alike, but their numbers are not."""

    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch):
            if pg.rank == odd:
                pg.reduce_scatter(np.zeros(4), async_op=True)
            for _ in range(3):
                await pg.all_reduce(f32())

    simulated("aabb", main)


@pytest.mark.parametrize("hosts", ["aabb", "abab"])
def test_a_missing_call_is_named(hosts: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(f32())
        with pytest.raises(dist.CollectiveTimeout) as caught:
            if pg.rank == 2:
                await asyncio.sleep(20)
            await pg.all_reduce(f32(), timeout=10 if pg.rank != 2 else 60)
        assert caught.value.missing == (2,)

    simulated(hosts, main)


@pytest.mark.parametrize("count", [50, 1_000_000])
async def test_abort_in_the_middle(count: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            for other in (0, 2, 3):  # who says this has its group
                await pg.recv(f32(1), other)
        works = [pg.all_reduce(f32(count), async_op=True) for _ in range(1 if pg.rank == 1 else 3)]
        if pg.rank == 1:
            pg.abort("enough")
        else:
            pg.send(f32(1), 1, async_op=True)
        for work in works:
            with pytest.raises(dist.GroupAborted, match="enough"):
                await work
        with pytest.raises(dist.GroupAborted):
            await pg.barrier()

    await connected("aabb", main, Thresholds(hierarchy=64))


def test_a_member_that_closes_early_is_missed() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(f32())
        if pg.rank != 3:
            with pytest.raises(dist.PeerLost) as caught:
                await pg.all_reduce(f32())
            assert caught.value.ranks == (3,)

    simulated("aabb", main)


async def test_what_is_staged_and_given_to_others_after_a_failure_is_no_result() -> None:
    """Rank 0's part of the result lies in its segment for rank 1 to read; it is freed when that fails."""
    count = 100_000
    ended: set[int] = set()

    def has_taken(local: Any) -> bool:
        """Whether it has read rank 1's part, and only waits until rank 1 has read its own."""
        return any(local.board.slots.word(local.board.rank, one.seq, TOOK) for one in gathering(local))

    def gathering(local: Any) -> list[Any]:
        return [one for one in local.board.slots.exchanges() if one.operation.call.kind is Kind.all_gather]

    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        await pg.barrier()
        inner: Any = hierarchy(group).grid.inner.backend
        local = inner.local
        watch: Any = core_of(group)._watch
        run, progress, hear = local.run, local.progress, watch.said
        unheard: list[Any] = []
        if pg.rank == 1:  # its loop is busy: it neither goes on nor hears
            local.run = lambda one: (
                local.board.slots.add(one) if one.operation.call.kind is Kind.all_gather else run(one)
            )
            local.progress = lambda: bool(gathering(local)) or progress()
            watch.said = unheard.append
        work = group.all_reduce(np.arange(count) + pg.rank, async_op=True)
        if pg.rank == 0:
            while not (has_taken(local) and ended == {2, 3}):  # noqa: ASYNC110
                await asyncio.sleep(0)
            group.abort("enough")
            with pytest.raises(dist.GroupAborted):
                await work
            await group.aclose()
            junk = []
            for _ in range(50):
                junk.append(pg.empty(count // 10, np.int64))
                junk[-1][...] = -7
            del junk, work
            await pg.barrier()
        elif pg.rank == 1:
            await pg.barrier()
            local.run, local.progress = run, progress
            for _ in range(10):
                local.progress()
            assert not work.done()
            watch.said = hear
            for message in unheard:
                hear(message)
            with pytest.raises(dist.GroupAborted):
                await work
        else:  # all that they need is there
            assert np.array_equal(await work, np.arange(count) * 4 + 6)
            ended.add(pg.rank)
            await pg.barrier()
        await pg.barrier()

    await connected("aabb", main, Thresholds(hierarchy=1))


@given(st.sampled_from(Kind), st.integers(0, 1 << 30), st.integers(2, 4096), st.integers(0, 1 << 20))
def test_large_parts_of_an_all_to_all_go_directly(kind: Kind, nbytes: int, size: int, least: int) -> None:
    chosen = goes_by_hosts(kind, nbytes, size, least)
    if kind is Kind.all_to_all:
        assert chosen == (least <= nbytes < size * APART)
    else:
        assert chosen == (kind in STEPS and nbytes >= least)
