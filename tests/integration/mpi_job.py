"""What the ranks of an MPI job do in test_mpi.py: `mpirun -n 4 python mpi_job.py PROGRAM`."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.backends.foreign.moves import Move
from aiodist.backends.mpi import meeting, process, progress, tables
from aiodist.backends.mpi.engine import MpiEngine
from aiodist.backends.mpi.library import load
from aiodist.backends.mpi.progress import Posted
from aiodist.base.types import DTYPES, Kind
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend
from aiodist.testing.conformance_backend import check_concurrent, check_program, check_subgroups
from aiodist.testing.programs import Step, operations, reduced, same, value
from tests.helpers import core_of


def engine_of(pg: ProcessGroup) -> MpiEngine:
    """The engine of a group."""
    backend: Any = core_of(pg).carriers
    found = backend.parts["cpu"].engine
    assert isinstance(found, MpiEngine)
    return found


async def conformance() -> None:
    """All that a backend must do."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        assert pg.backend == "mpi"
        assert "one-answer" not in core_of(pg).carriers.capabilities
        await check_backend(pg, seed=pg.size, length=50)


async def reductions() -> None:
    """Every reduction of every dtype, in place and not."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        for salt, dtype in enumerate(DTYPES):
            for op in operations(dtype):
                step = Step(Kind.all_reduce, dtype, (17,), "C", op, 0, False, salt)
                tensor = value(step, pg.rank)
                total = reduced(step, pg.size, range(pg.size))
                same(await pg.all_reduce(tensor, op), total, step)
                same(
                    await pg.reduce_scatter(np.repeat(value(step, pg.rank), pg.size), op=op),
                    np.repeat(total, pg.size)[pg.rank * 17 : pg.rank * 17 + 17],
                    step,
                )
                got = await pg.reduce(value(step, pg.rank), pg.size - 1, op)
                if pg.rank == pg.size - 1:
                    same(got, total, step)


async def overflows() -> None:
    """Sums of integers wrap around, also where the library would saturate them."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64):
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            index = np.arange(100 * pg.size)  # more than one vector register holds, and a rest
            tensors = [
                np.where(index % 3 == 0, np.array(high - rank, dtype), np.array(low + 7, dtype))
                for rank in range(pg.size)
            ]
            tensors = [tensor + (index % 5).astype(dtype) for tensor in tensors]
            total = np.add.reduce(tensors, dtype=dtype)
            mine = tensors[pg.rank]
            part = total.reshape(pg.size, -1)[pg.rank]
            assert np.array_equal(await pg.reduce_scatter(mine), part), dtype
            got = await pg.reduce(mine, 0, out=np.empty_like(mine) if pg.rank == 0 else None)
            assert got is None or np.array_equal(got, total), dtype
            assert np.array_equal(await pg.all_reduce(mine), total), dtype


async def pieces() -> None:
    """What is too large for one call goes in pieces."""
    tables.LARGEST = 50
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        await check_program(pg, 5, 60, big=300)
        await check_concurrent(pg, 6, 60)


async def orders() -> None:
    """Groups that overlap, made in another order by every rank."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        left = await pg.new_group([0, 1, 2])
        right = await pg.new_group([1, 2, 3])
        parents = [group for group in (left, right) if group is not None]
        for turn in range(5):
            order = parents if (pg.rank + turn) % 2 else parents[::-1]
            made = await asyncio.gather(*[group.new_group() for group in order])
            groups = [group for group in made if group is not None]
            sums = await asyncio.gather(*[group.all_reduce(np.array([pg.rank])) for group in groups])
            assert [total[0] for total in sums] == [sum(group.ranks) for group in groups]
            await asyncio.gather(*[group.aclose() for group in groups])
        await check_subgroups(pg)


async def late() -> None:
    """Messages pass a collective that one rank has yet to begin, and the loop turns meanwhile."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        turns = 0
        over = asyncio.Event()

        async def turn() -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.create_task(turn())
        tensor = np.arange(300_000.0) + pg.rank
        if pg.rank:
            work = pg.all_reduce(tensor, async_op=True)
            for number in range(20):  # rank 0 has yet to come
                if pg.rank == 1:
                    await pg.send(np.array([number]), 2)
                elif pg.rank == 2:
                    into = np.zeros(1, np.int64)
                    await pg.recv(into, 1)
                    assert into[0] == number
            if pg.rank == 2:
                await pg.send(np.zeros(1), 0)
            await work
        else:
            await pg.recv(np.zeros(1), 2)
            await pg.all_reduce(tensor)
        assert np.array_equal(tensor, np.arange(300_000.0) * pg.size + sum(range(pg.size)))
        over.set()
        await turning
        assert turns > 20


async def messages() -> None:
    """A message that is not as long as what is expected is none. (Usually it is found before.)"""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        mine, failed = engine_of(pg), asyncio.Event()
        why: list[Exception] = []

        def fails(error: Exception) -> None:
            why.append(error)
            failed.set()

        mine.setup = replace(mine.setup, failed=fails)  # the group does not hear of it
        for count in (2, 5):
            failed.clear()
            if pg.rank == 0:
                mine.exchange([Move(False, 1, np.zeros(3))], failed.set)
                await failed.wait()
            elif pg.rank == 1:
                mine.exchange([Move(True, 0, np.ones(count))], failed.set)
                await failed.wait()
            await pg.barrier()
        if pg.rank == 0:
            assert len(why) == 2, why
            assert "a message of 2 elements came from 1, 3 were expected" in str(why[0])
            assert "trunc" in str(why[1]).lower(), why[1]


async def splits() -> None:
    """Who expects another part than what is sent is told, also where one of the two is empty."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        pairs = [await pg.new_group([0, 1]) for _ in range(3)]
        for pair, (sent, expected) in zip(pairs, ((2, 0), (0, 2), (2, 3)), strict=True):
            if pair is None:
                continue
            counts = ([1, sent], [1, 0]) if pg.rank == 0 else ([0, 1], [expected, 1])
            why = "nobody was told"
            try:
                await pair.all_to_all(np.arange(float(sum(counts[0]))), None, *counts)
                assert pg.rank == 0, "wrong, and a success"
                await pair.barrier()
            except dist.CollectiveMismatch as error:
                why = str(error)
            assert f"sends {sent} elements to rank 1" in why, why
            assert f"expects {expected} elements from rank 0" in why, why
        for pair in pairs:
            if pair is not None:
                with contextlib.suppress(dist.GroupBroken):
                    await pair.aclose()
        await pg.barrier()


async def begin(pg: ProcessGroup) -> None:
    """Begin a collective of MPI that the group knows nothing of."""
    mine, tensor = engine_of(pg), np.ones(100_000)
    begun = asyncio.get_running_loop().create_future()

    def post() -> Iterator[Posted]:
        yield Posted(mine._comm.Ibcast(mine._buffer(tensor), 1))
        mine.setup.loop.call_soon_threadsafe(begun.set_result, None)

    mine._post(post, lambda: None)
    await begun


async def abort(begins: bool, why: str) -> None:
    """Begin it on some ranks, and abort."""
    pg = await dist.init_process_group("mpi", timeout=60)
    if begins:
        await begin(pg)
    await pg.barrier()
    if pg.rank == 0:
        pg.abort(why)
    with contextlib.suppress(dist.GroupBroken):
        await pg.aclose()


async def aborted() -> None:
    """What all have begun ends by itself: nothing is left open."""
    progress.GRACE = 50.0  # so it does, or this takes long
    await abort(True, "enough")
    assert process.this.quarantine == []


async def open_but_all_end() -> None:
    """What only rank 0 has begun stays open. All others end, so MPI can, too."""
    await abort(await rank_of_job() == 0, "a collective that does not end")


async def open_and_one_hangs() -> None:
    """Another rank never ends. The job ends when the patience of rank 0 does, which alone has said why."""
    rank = await rank_of_job()
    process.LINGER = 5.0 if rank == 0 else 50.0
    await abort(rank == 0, "a collective that does not end")
    if rank == 1:
        time.sleep(1000)


async def one_hangs() -> None:
    """One rank never comes."""
    process.LINGER = 5.0
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        if pg.rank == 1:
            time.sleep(1000)
        await pg.all_reduce(np.ones(3), timeout=1)


async def rank_of_job() -> int:
    """The rank in COMM_WORLD."""
    return load().rank


async def gives_up() -> None:
    """Who gave up meeting the others does not try again: its calls would be taken for earlier ones."""
    if await rank_of_job() == 1:
        return
    try:
        await dist.init_process_group("mpi", timeout=0.5)
    except dist.RendezvousTimeout as error:
        print(f"late: {error}")
    try:
        await dist.init_process_group("mpi", timeout=60)
    except dist.RendezvousError as error:
        print(f"refused: {error}")


async def contradiction() -> None:
    """Another place than MPI's is refused on every rank."""
    try:
        await dist.init_process_group("mpi", rank=await rank_of_job(), world_size=9)
    except dist.UsageError as error:
        print(f"refused: {error}")


async def one_is_wrong() -> None:
    """All say that they are rank 0. Nobody catches anything: the job has to end by itself."""
    await dist.init_process_group("mpi", rank=0, world_size=2)


async def wiretapped() -> None:
    """Print what rank 0 tells by MPI when all meet, as whoever listens on MPI's network has it."""
    heard: list[bytes] = []
    read = meeting._read

    def listen(announced: Any) -> tuple[str, str]:
        heard.append(announced.tobytes().rstrip(b"\0"))
        return read(announced)

    meeting._read = listen
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == sum(range(pg.size + 1))
    [words] = heard
    print(f"heard: {words.decode()!r}")


async def one_has_no_secret() -> None:
    """The operator's secret reached some ranks only."""
    if await rank_of_job() == 1:
        del os.environ["AIODIST_SECRET"]
    try:
        await dist.init_process_group("mpi", timeout=60)
    except dist.RendezvousError as error:
        print(f"refused: {error}")


async def one_is_wrong_elsewhere() -> None:
    """The same, where variables say where to meet."""
    await dist.init_process_group("mpi", rank=0, world_size=2, timeout=1)


async def all_try_again() -> None:
    """Who was refused, and who was told so, may meet after all."""
    try:
        await dist.init_process_group("mpi", rank=0, world_size=2, timeout=60)
    except (dist.UsageError, dist.RendezvousError) as error:
        print(f"refused: {error}")
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3


async def too_many_groups() -> None:
    """MPICH has some 2000 communicators; aiodist has room for 2047 groups with an engine on one host."""
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        groups = []
        try:
            for _ in range(2100):
                group = await pg.new_group()
                assert group is not None
                groups.append(group)
        except dist.GroupBroken as error:
            print(f"broken: {error}")
        for group in groups[-8:]:
            await group.aclose()
        await pg.barrier()
        group = await pg.new_group()
        assert group is not None
        assert (await group.all_reduce(np.array([pg.rank + 1])))[0] == 3


def level(name: str) -> None:
    """The user initialises MPI so that fewer threads may call it."""
    import mpi4py

    mpi4py.rc.thread_level = name
    from mpi4py import MPI

    print(f"level {MPI.Query_thread()} of {[MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED]}")


async def serialized() -> None:
    """One thread at a time: all calls are made by one."""
    level("serialized")
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        assert not load().multiple
        await check_program(pg, 3, 40)
        await check_subgroups(pg)


async def funneled() -> None:
    """Too few threads."""
    level("funneled")
    try:
        await dist.init_process_group("mpi")
    except dist.BackendUnavailable as error:
        print(f"refused: {error}")


async def finalised() -> None:
    """Too late."""
    from mpi4py import MPI

    MPI.Finalize()
    try:
        await dist.init_process_group("mpi")
    except dist.BackendUnavailable as error:
        print(f"refused: {error}")


async def uninitialised() -> None:
    """The user has told mpi4py to do nothing: aiodist initialises, and finalises."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    assert not MPI.Is_initialized()
    async with await dist.init_process_group("mpi", timeout=60) as pg:
        assert (await pg.all_reduce(np.array([pg.rank])))[0] == sum(range(pg.size))
    assert MPI.Is_initialized()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(110, exit=True)
    asyncio.run(globals()[sys.argv[1]]())
    faulthandler.cancel_dump_traceback_later()
    print("<well>")
