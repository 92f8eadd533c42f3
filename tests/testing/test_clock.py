"""Virtual time: it jumps, it is exact, and it never waits for what cannot happen."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.testing.clock import SimulationStuck, VirtualLoop, run_virtual


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        assert loop.time() == 0
        await asyncio.sleep(365 * 24 * 3600)
        return loop.time()

    assert run_virtual(main()) == pytest.approx(365 * 24 * 3600)


@given(delays=st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_timers_fire_in_order_each_at_its_time(delays: list[float]) -> None:
    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[float, float]] = []

        async def wait(delay: float) -> None:
            await asyncio.sleep(delay)
            fired.append((delay, loop.time()))

        await asyncio.gather(*[wait(delay) for delay in delays])
        return fired

    fired = run_virtual(main())
    assert [delay for delay, _ in fired] == pytest.approx(sorted(delays), abs=1e-6)
    for delay, when in fired:
        assert when == pytest.approx(delay, abs=1e-6)


def test_time_does_not_move_while_anything_can_run() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == 0

    run_virtual(main())


def test_timeouts_work() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        assert asyncio.get_running_loop().time() == pytest.approx(30)

    run_virtual(main())


def test_waiting_for_what_never_happens_is_an_error() -> None:
    cleaned = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(SimulationStuck, match="nothing is ready and no timer is set"):
        run_virtual(main())
    gc.collect()
    assert cleaned == [True]


def test_the_result_and_the_exception_come_out() -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtual(fails())


def test_same_program_same_run() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def work(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(number % 3)
                order.append(number)

        await asyncio.gather(*[work(number) for number in range(9)])
        return order

    assert run_virtual(main()) == run_virtual(main())


def test_what_would_go_to_a_thread_runs_at_once() -> None:
    """A thread takes no virtual time, so nothing could wait for it."""

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "x")
        return await asyncio.to_thread(int, "7"), loop.time()

    assert run_virtual(main()) == (7, 0.0)
