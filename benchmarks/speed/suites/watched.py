"""What it costs to watch a job of 1,000 ranks: an exposition of its metrics, and its page.

The ranks are made up: by eight on hosts, each with ten sorts of operations in two groups, the last 64
operations, and connections with eight others. Each look gives new views, as a job's store would, of ranks
that have all gone on; one is slower than the others. All of it is in one process, whose time is measured. The
views are made before.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from aiodist.observe.dashboard.auth import BrowserSessions
from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.dashboard.server import Server
from aiodist.observe.metrics import Tally, exposition
from aiodist.observe.recorder.reading import Group, Line, Link, Record, Recording, Sum, Vitals
from aiodist.observe.summary import summary
from aiodist.observe.view import JobView, RankView
from benchmarks.harness.crew import Crew
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.base import Peer

T = TypeVar("T")
LOOKS = 7
LAST = 64  # operations that a look shows of each rank, as `observe.source.FEW`
RATE = 50  # operations a second, and a look
NODE = 8
OPS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")


def watched(run: Run) -> list[Step]:
    """The metrics, and the page."""
    ranks = 50 if run.settings.quick else 1000
    return [
        Step("watched", f"metrics of {ranks} ranks", partial(_metrics, run, ranks)),
        Step("watched", f"the page of {ranks} ranks", partial(_page, run, ranks)),
    ]


def _metrics(run: Run, ranks: int) -> None:
    with Crew(AIODIST, 1) as crew:
        judged, told, nbytes, series = crew.do(metrics_of, ranks=ranks)[0]
    add = partial(run.results.add, "watched", peer="metrics", ranks=ranks)
    add("summary and verdicts", values=judged)
    add("an exposition", values=told)
    add("bytes of an exposition", values=[nbytes], unit="B")
    add("series", values=[series], unit="")


def _page(run: Run, ranks: int) -> None:
    with Crew(AIODIST, 1) as crew:
        found = crew.do(page_of, ranks=ranks, seconds=3.0 if run.settings.quick else 12.0)[0]
    for (what, unit), value in zip(_PAGE.items(), found, strict=True):
        run.results.add("watched", what, "page", [value], ranks=ranks, unit=unit)


_PAGE = {"share of a core": "ratio", "news after, most": "s", "bytes a second": "B", "looks a second": ""}


# ── on a rank ────────────────────────────────────────────────────────────────────────────────────────


def a_job(ranks: int, look: int) -> JobView:
    """The job, as it is seen in one of the looks, a second after the one before."""
    world = Group("world", 0, range(ranks))
    return JobView("cafe", tuple(_a_rank(world, rank, look) for rank in range(ranks)))


def _a_rank(world: Group, rank: int, look: int) -> RankView:
    ranks, node, now = len(world.ranks), rank // NODE, 1000.0 + look
    slow = rank == ranks // 2
    local = Group(f"node {node}", 0, range(node * NODE, min(ranks, (node + 1) * NODE)))
    line, late, done = Line("/home/u/train.py", 41, "step"), 0.01 * slow, RATE * look
    last = tuple(
        Record(
            *((world, local)[number % 2], "all_reduce", number // 2, "float32", (1000,), "SUM", -1, 0, 4000),
            *(line, at := now - (done - number) / RATE + late, at, at + 0.01, 0.0, at + 0.012, False),
        )
        for number in range(max(0, done - LAST), done)
    )
    waited = 0.0 if slow else (0.02 + rank * 7 % 10 / 500) * look
    sums = tuple(
        Sum(group, op, "float32", (1000,), "", -1, 0, 4000, done, done, 0, waited, 0.2 * look)
        for group in (world, local)
        for op in OPS
    )
    pending = () if slow or rank * 7 % 10 < 3 else (replace(last[-1], ended=0.0, arrived=0.0),)
    links = tuple(Link((rank + NODE * step) % ranks, 1000 * look, 0.1, 0.001, 0) for step in range(1, 9))
    recording = Recording(
        *(4000 + rank, rank, ranks, 0, 5000.0, 1.0, 0.0, (world, local), last, pending),
        *(Vitals(now, 10 * look, now, 0.001 * (rank % 7), done), sums),
        {"argv": ["/home/u/train.py"], "clock": "one"},
        links=links,
    )
    return RankView(f"host-{node}", "cafe", recording, now, memory=10**9 + rank, cpu=now / 2)


async def metrics_of(peer: Peer, ranks: int) -> tuple[list[float], list[float], int, int]:
    """Processor seconds of each look, for verdicts and for an exposition; its bytes and series."""
    tally = Tally()
    judged, told, body = [], [], b""
    for look in range(1, LOOKS + 1):
        job = a_job(ranks, look)
        seen, seconds = _timed(partial(summary, None, job))
        judged.append(seconds)
        (body, _), seconds = _timed(partial(exposition, seen, job, tally))
        told.append(seconds)
    return judged, told, len(body), sum(not line.startswith(b"#") for line in body.splitlines())


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


async def page_of(peer: Peer, ranks: int, seconds: float) -> tuple[float, float, float, float]:
    """The share of a core, the seconds from a look to its news at most, bytes and looks a second.

    The server has asyncio's own loop, as the command `aiodist dashboard` has.
    """
    return await asyncio.to_thread(asyncio.run, _serve_page(ranks, seconds))


async def _serve_page(ranks: int, seconds: float) -> tuple[float, float, float, float]:
    made = [a_job(ranks, look) for look in range(1, round(seconds) + 5)]
    gc.collect()
    gc.freeze()  # what is made beforehand would not be there
    looks: list[float] = []  # when each was

    async def look() -> tuple[JobView, str]:
        looks.append(time.monotonic())
        return made[min(len(looks), len(made)) - 1], ""

    logs = Logs("here")
    feed = Feed(look, logs, ask=list)
    sessions = BrowserSessions(lambda: secrets.token_urlsafe(16))
    server = Server(feed, logs, sessions)
    host, port = await server.start("127.0.0.1", 0)
    session = sessions.open(sessions.token)
    assert session is not None
    await feed.step()
    page = _Page(f"http://{host}:{port}/s/{session.path}/events", session.cookie, looks)
    tasks = asyncio.create_task(feed.run()), asyncio.create_task(page.read())
    await asyncio.sleep(2)  # it is open
    began, cpu, before = time.monotonic(), time.process_time(), len(looks)
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()
        elapsed = time.monotonic() - began
        share = (time.process_time() - cpu) / elapsed
        return share, page.delay, page.rate, (len(looks) - before) / elapsed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.aclose()


class _Page:
    """An open page, which takes what comes.

    Attributes:
        delay: the longest time from a look to its news; rate: bytes a second.
    """

    def __init__(self, url: str, cookie: str, looks: list[float]) -> None:
        self._url, self._cookie, self._looks = url, cookie, looks
        self.delay = self.rate = 0.0

    async def read(self) -> None:
        import aiohttp

        began, taken, count = time.monotonic(), 0, 0
        async with (
            aiohttp.ClientSession() as http,
            http.get(
                self._url,
                headers={"Cookie": f"aiodist={self._cookie}"},
                timeout=aiohttp.ClientTimeout(),
            ) as answer,
        ):
            while chunk := await answer.content.readany():
                taken += len(chunk)
                count += chunk.endswith(b"\n\n")
                if chunk.endswith(b"\n\n") and count > 2:
                    self.delay = max(self.delay, time.monotonic() - self._looks[-1])
                    self.rate = taken / (time.monotonic() - began)
