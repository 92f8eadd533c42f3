"""What the page of a job of 1,000 ranks costs its server: `python -m benchmarks.dashboard`.

The ranks are simulated: each look gives new views, as a job's store would, of ranks that have all gone on.
One page is open, as a reader of the events, in the same process. What is measured is the whole process:
processor time in each second, and the time from a look to the arrival of its news. The views are made before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import secrets
import time
from dataclasses import replace

import aiohttp

from aiodist.observe.dashboard.auth import Sessions
from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.dashboard.server import Server
from aiodist.observe.recorder.reading import Group, Line, Record, Recording, Sum, Vitals
from aiodist.observe.view import JobView, RankView

OPERATIONS = 64  # of each rank that are told, as by a job's store
SORTS = 10
RATE = 50  # operations a second


class Simulated:
    """A job of many ranks, of which one is slower than the others.

    Args:
        count: of ranks.
        turns: looks that there will be.

    Attributes:
        looks: how many there were; looked: when the last one was.
    """

    def __init__(self, count: int, turns: int) -> None:
        self._world = Group("world", 0, range(count))
        self._count = count
        self._turn = self.looks = 0
        self.looked = 0.0
        self._made = [self._job() for _ in range(turns)]

    async def look(self) -> tuple[JobView, str]:
        """The job, a second later."""
        self.looks += 1
        self.looked = time.monotonic()
        return self._made[min(self.looks, len(self._made)) - 1], ""

    def _job(self) -> JobView:
        self._turn += 1
        now = 1000.0 + self._turn
        return JobView("simulated", tuple(self._view(rank, now) for rank in range(self._count)))

    def _view(self, rank: int, now: float) -> RankView:
        issued = RATE * self._turn
        line = Line("/home/u/train.py", 41, "step")
        late = 0.5 if rank == self._count // 2 else 0.0
        last = tuple(
            Record(
                *(self._world, "all_reduce", number, "float32", (1024,), "SUM", -1, 0, 4096, line),
                *(at := now - (issued - number) / RATE + late / RATE, at, at + 0.01, 0.0, at + 0.012, False),
            )
            for number in range(max(0, issued - OPERATIONS), issued)
        )
        waited = 0.0 if late else (0.02 + rank * 7 % 10 / 500) * self._turn
        sums = tuple(
            Sum(
                self._world,
                "all_reduce",
                "float32",
                (one,),
                "SUM",
                -1,
                0,
                4096,
                issued,
                issued,
                0,
                waited,
                0.1,
            )
            for one in range(SORTS)
        )
        pending = () if late or rank * 7 % 10 < 3 else (replace(last[-1], ended=0.0, arrived=0.0),)
        recording = Recording(
            *(4000 + rank, rank, self._count, 0, 5000.0, 1.0, 0.0, (self._world,), last, pending),
            *(Vitals(now, 10 * self._turn, now, 0.001 * (rank % 7), issued), sums),
            about={"argv": ["/home/u/train.py"]},
        )
        return RankView(f"host-{rank // 8}", "simulated", recording, now, memory=10**9 + rank, cpu=now / 2)


async def measure(count: int, seconds: float) -> tuple[float, float, float, float]:
    """The share of a core, the seconds from a look to the page, bytes a second, and looks a second."""
    job = Simulated(count, round(seconds) + 4)
    gc.collect()
    gc.freeze()  # what is made beforehand would not be there
    logs = Logs("here")
    feed = Feed(job.look, logs, ask=list)
    sessions = Sessions(lambda: secrets.token_urlsafe(16))
    server = Server(feed, logs, sessions)
    host, port = await server.start("127.0.0.1", 0)
    session = sessions.open(sessions.token)
    assert session is not None
    await feed.step()
    looking = asyncio.create_task(feed.run())
    reader = asyncio.create_task(_read(f"http://{host}:{port}/s/{session.path}/events", session.cookie, job))
    await asyncio.sleep(2)  # it is open
    began, cpu, looks = time.monotonic(), time.process_time(), job.looks
    try:
        done, _ = await asyncio.wait((looking, reader), timeout=seconds)
        for task in done:
            task.result()
        elapsed = time.monotonic() - began
        share = (time.process_time() - cpu) / elapsed
        return share, _figures[0], _figures[1], (job.looks - looks) / elapsed
    finally:
        looking.cancel()
        reader.cancel()
        await asyncio.gather(looking, reader, return_exceptions=True)
        await server.aclose()


_figures = [0.0, 0.0]  # the longest delay, bytes a second


async def _read(url: str, cookie: str, job: Simulated) -> None:
    """A page: it takes what comes."""
    began, taken = time.monotonic(), 0
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, headers={"Cookie": f"aiodist={cookie}"}, timeout=aiohttp.ClientTimeout()) as answer,
    ):
        count = 0
        while chunk := await answer.content.readany():
            taken += len(chunk)
            if chunk.endswith(b"\n\n"):
                count += 1
                if count > 2:
                    _figures[0] = max(_figures[0], time.monotonic() - job.looked)
                    _figures[1] = taken / (time.monotonic() - began)


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    share, delay, rate, looks = asyncio.run(measure(args.ranks, args.seconds))
    print(
        f"{args.ranks} ranks, {args.seconds:.0f} s, {os.cpu_count()} cores: {share:.1%} of a core, "
        f"{looks:.2f} looks a second, "
        f"news after {delay * 1000:.0f} ms at most, {rate / 1000:.0f} kB/s"
    )


if __name__ == "__main__":
    main()
