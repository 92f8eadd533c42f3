"""What `aiodist bench` runs on each rank, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import aiodist as dist
from aiodist.cli.bench.__main__ import SweepProgress
from aiodist.cli.bench.calls import Bound, UnavailableError, per_operation, timed
from aiodist.cli.bench.cases import COLLECTIVES, SWEPT, Case
from aiodist.cli.bench.lateness import Ticker
from aiodist.cli.bench.sweep import SweepLine, cases, sweep
from aiodist.testing import run_cluster


def test_a_barrier_has_no_size() -> None:
    assert cases(["all_reduce", "barrier"], [8, 64]) == [
        Case("all_reduce", 8),
        Case("all_reduce", 64),
        Case("barrier"),
    ]


async def test_every_operation_is_measured_and_checked() -> None:
    async def main(pg: dist.ProcessGroup) -> list[SweepLine]:
        found = sweep(pg, cases([*SWEPT, "five"], [64]), budget=0.0)
        return [line async for _, line in found if line is not None]

    for lines in await run_cluster(3, main):
        assert [line.what for line in lines] == [*COLLECTIVES, "p2p", "five", "barrier"]
        assert all(0 < line.low <= line.seconds <= line.high for line in lines)


async def test_one_rank_has_nobody_to_send_to() -> None:
    async def main(pg: dist.ProcessGroup) -> None:
        with pytest.raises(UnavailableError, match="two ranks"):
            await Bound(pg, Case("p2p", 8)).prepare()

    await run_cluster(1, main)


async def test_64_in_flight_count_as_64() -> None:
    case = Case("inflight", 1024)

    async def main(pg: dist.ProcessGroup) -> list[float]:
        bound = Bound(pg, case)
        await bound.prepare()
        return await timed(bound.once(), 2, 1)

    taken = (await run_cluster(2, main))[0]
    assert len(taken) == 2
    assert per_operation(case, 64.0) == 1
    assert per_operation(Case("p2p", 8), 1.0) == 0.5


async def test_a_ticker_notes_how_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    timers: list[Callable[[], Any]] = []

    class Handle:
        def cancel(self) -> None:
            timers.clear()

    def call_later(delay: float, callback: Callable[[], Any]) -> Handle:
        timers.append(callback)
        return Handle()

    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    ticker = Ticker()
    ticker.start()
    now += 0.004
    timers.pop()()
    now += 0.0005
    timers.pop()()  # early: uvloop counts whole milliseconds
    now += 0.011
    assert ticker.stop() == pytest.approx([0.003, 0.0, 0.010])
    assert not timers


def test_progress_is_drawn_where_it_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    progress = SweepProgress(2, "stdout")
    progress.step("one")
    progress.step("two")
    progress.end()
    out, err = capsys.readouterr()
    assert [line.split()[1::4] for line in out.split("\r")[:-1]] == [["0", "one"], ["50", "two"]]
    assert not err
    SweepProgress(1, "").step("unseen")
    assert capsys.readouterr() == ("", "")
