"""Long work runs in a thread and reports on the loop; short work is done at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from aiodist.backends.arrays.kernels import INLINE_NS, copy_cost_ns
from aiodist.backends.host.offload import Offload


def unexpected(error: Exception) -> None:
    """No job here fails."""
    pytest.fail(str(error))


async def finish(offload: Offload, cost: float, job: Any) -> None:
    """Run a job and wait for it."""
    done = asyncio.Event()
    if not offload.run(cost, job, done.set, unexpected):
        await done.wait()


async def test_cheap_work_is_done_on_the_spot() -> None:
    offload = Offload(asyncio.get_running_loop())
    where: list[threading.Thread] = []
    assert offload.run(INLINE_NS, lambda: where.append(threading.current_thread()), pytest.fail, unexpected)
    assert where == [threading.current_thread()]
    offload.close()


async def test_dear_work_runs_elsewhere_and_reports_here() -> None:
    offload = Offload(asyncio.get_running_loop())
    where: list[threading.Thread] = []
    done = asyncio.Event()

    def report() -> None:
        where.append(threading.current_thread())
        done.set()

    assert not offload.run(
        INLINE_NS + 1, lambda: where.append(threading.current_thread()), report, unexpected
    )
    await done.wait()
    assert where[0] is not threading.current_thread()
    assert where[1] is threading.current_thread()
    offload.close()
    offload.close()
    assert not where[0].is_alive()


async def test_the_thread_of_one_that_nobody_closes_ends_with_it() -> None:
    offload = Offload(asyncio.get_running_loop())
    where: list[threading.Thread] = []
    await finish(offload, INLINE_NS + 1, lambda: where.append(threading.current_thread()))
    del offload
    gc.collect()
    await asyncio.to_thread(where[0].join, 60)
    assert not where[0].is_alive()


async def test_the_loop_turns_meanwhile_and_jobs_keep_their_order() -> None:
    offload = Offload(asyncio.get_running_loop())
    gate = threading.Event()
    order: list[int] = []
    done: list[asyncio.Event] = []
    for number in range(5):
        done.append(asyncio.Event())

        def job(number: int = number) -> None:
            gate.wait()
            order.append(number)

        assert not offload.run(1e9, job, done[-1].set, unexpected)
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == []
    gate.set()
    for event in done:
        await event.wait()
    assert order == [0, 1, 2, 3, 4]
    offload.close()


async def test_inline_runs_everything_on_the_callers_thread() -> None:
    offload = Offload(asyncio.get_running_loop(), inline=True)
    where: list[threading.Thread] = []
    assert offload.run(1e12, lambda: where.append(threading.current_thread()), pytest.fail, unexpected)
    assert where == [threading.current_thread()]


def test_work_that_outlives_its_loop_disturbs_nobody() -> None:
    gate = threading.Event()
    ran = threading.Event()

    def job() -> None:
        gate.wait()
        ran.set()

    async def main() -> Offload:
        offload = Offload(asyncio.get_running_loop())
        assert not offload.run(1e9, job, pytest.fail, unexpected)
        return offload

    offload = asyncio.run(main())
    gate.set()
    offload.close()
    assert ran.is_set()


def test_cost_of_a_copy_grows_with_it() -> None:
    assert copy_cost_ns(0) == 0
    assert copy_cost_ns(64 << 20) > INLINE_NS > copy_cost_ns(64 << 10)


@pytest.mark.parametrize("cost", [0.0, 1e9])
async def test_a_job_that_raises_is_told_before_its_end(cost: float) -> None:
    offload = Offload(asyncio.get_running_loop())
    told: list[str] = []
    ended = asyncio.Event()

    def job() -> None:
        raise MemoryError("no room")

    def done() -> None:
        told.append("done")
        ended.set()

    if not offload.run(cost, job, done, lambda error: told.append(repr(error))):
        await ended.wait()
    assert told == ["MemoryError('no room')", "done"][: 2 if cost else 1]
    offload.close()
