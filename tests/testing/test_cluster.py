"""A cluster in one process: each rank has its own group, and no failure is swallowed."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import SimulationStuck, run_cluster, run_virtual
from aiodist.transport.memory import MemoryNetwork


@pytest.mark.parametrize("size", [1, 2, 9])
async def test_results_come_in_rank_order(size: int) -> None:
    async def main(pg: ProcessGroup) -> tuple[int, int, tuple[str, ...]]:
        for _ in range(size - pg.rank):
            await asyncio.sleep(0)
        return pg.rank, pg.size, pg.hosts

    assert await run_cluster(size, main) == [(rank, size, ("memory",) * size) for rank in range(size)]


async def test_module_level_calls_find_the_ranks_own_group() -> None:
    async def main(pg: ProcessGroup) -> int:
        assert dist.get_rank() == pg.rank
        assert await asyncio.create_task(inner()) == pg.rank  # tasks inherit it
        tensor = np.array([pg.rank])
        await dist.all_reduce(tensor)
        return int(tensor[0])

    async def inner() -> int:
        return dist.get_rank()

    assert await run_cluster(4, main) == [6] * 4
    assert not dist.is_initialized()


async def test_failures_come_as_a_group_and_peers_are_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            raise KeyError("mine")
        await pg.barrier()

    with pytest.raises(ExceptionGroup, match="3 of 3 ranks failed: rank 1: KeyError: 'mine'") as caught:
        await run_cluster(3, main)
    assert [(type(error), error.__notes__[-1]) for error in caught.value.exceptions] == [
        (KeyError, "on rank 1 of 3"),
        (dist.GroupAborted, "on rank 0 of 3"),
        (dist.GroupAborted, "on rank 2 of 3"),
    ]


async def test_failures_in_place_of_results() -> None:
    async def main(pg: ProcessGroup) -> Any:
        if pg.rank == 1:
            raise KeyError("mine")
        return "well"

    first, second, third = await run_cluster(3, main, return_exceptions=True)
    assert first == third == "well"
    assert isinstance(second, KeyError)


async def test_a_cancelled_rank_is_a_failure() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await pg.barrier()

    with pytest.raises(BaseExceptionGroup, match="ranks failed") as caught:
        await run_cluster(3, main)
    assert isinstance(caught.value.exceptions[0], asyncio.CancelledError)


async def test_cancelling_the_cluster_ends_every_rank() -> None:
    ended: list[int] = []

    async def main(pg: ProcessGroup) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(pg.rank)

    task = asyncio.create_task(run_cluster(3, main))
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


def test_the_clock_of_a_virtual_cluster_is_the_networks() -> None:
    async def main(pg: ProcessGroup) -> float:
        await pg.barrier()
        began = asyncio.get_running_loop().time()
        await pg.barrier()
        return asyncio.get_running_loop().time() - began

    times = run_virtual(run_cluster(4, main, network=MemoryNetwork(delay=lambda src, dst: 5.0)))
    assert times == pytest.approx([10.0] * 4)  # two rounds of a dissemination barrier


def test_a_virtual_cluster_that_is_stuck_lists_who_waits_for_what() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank < 2:
            await pg.recv(np.zeros(2), pg.rank + 1)
        else:
            await asyncio.gather(pg.recv_object(None), asyncio.Event().wait())

    with pytest.raises(SimulationStuck) as caught:
        run_virtual(run_cluster(3, main))
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing is ready and no timer is set"
    zero, one, two = (lines.index(f"rank {rank}: {main.__qualname__}") for rank in range(3))
    here = inspect.getsourcelines(main)[1]
    assert lines[zero + 1].endswith(f"test_cluster.py:{here + 2} in main")
    assert lines[zero + 2] == "  awaits recv #0 from rank 1"
    assert lines[one + 2] == "  awaits recv #0 from rank 2"
    assert lines[two + 1].endswith(f"test_cluster.py:{here + 4} in main")
    assert any("Event.wait" in line for line in lines[two:])


def test_a_virtual_cluster_that_is_stuck_lists_who_had_failed() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await asyncio.Event().wait()
        raise ValueError("the batch is bad")

    with pytest.raises(SimulationStuck) as caught:
        run_virtual(run_cluster(2, main))
    last = str(caught.value).splitlines()[-1]
    assert (
        last.startswith("rank 0: had failed: ValueError: the batch is bad (") and "test_cluster.py:" in last
    )


def test_same_seed_same_run() -> None:
    def run() -> list[list[tuple[float, int]]]:
        delays = np.random.default_rng(5)
        network = MemoryNetwork(delay=lambda src, dst: float(delays.exponential(0.01)))

        async def main(pg: ProcessGroup) -> list[tuple[float, int]]:
            seen = []
            for step in range(5):
                tensor = np.array([pg.rank + step])
                await pg.all_reduce(tensor)
                seen.append((asyncio.get_running_loop().time(), int(tensor[0])))
            return seen

        return run_virtual(run_cluster(5, main, network=network))

    assert run() == run()


async def test_fixture_of_the_plugin(aiodist_cluster: Callable[..., Any]) -> None:
    async def main(pg: ProcessGroup) -> int:
        return int((await pg.all_reduce(np.array([pg.rank + 1])))[0])

    assert await aiodist_cluster(3, main) == [6, 6, 6]


def test_the_package_loads_what_a_name_needs_at_its_first_use() -> None:
    code = (
        "import sys, aiodist.testing as t\n"
        "assert not {'aiodist.group', 'numpy'} & set(sys.modules)\n"
        "assert all(getattr(t, name).__name__ == name for name in t.__all__)\n"
        "print(hasattr(t, 'Nonsense'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
