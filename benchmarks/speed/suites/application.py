"""examples/service.py under load, beside the same service whose front end asks over asyncio streams.

Each is a front end (aiohttp) and three workers; clients keep 1, 8 and 32 requests under way, in turns. Then
workers of the first are killed, one after the other, while 8 clients ask: it says what they saw. Every answer
is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgpack

import aiodist as dist
from aiodist.cli.bench.measures import quantile
from benchmarks.harness.command import ROOT
from benchmarks.harness.crew import free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.service import StreamClient, more

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

EXAMPLE = ROOT / "examples" / "service.py"
WORKERS = 3
AT_ONCE = (1, 8, 32)
PATIENCE = 30.0


def application(run: Run) -> list[Step]:
    """Both in turns, and then the deaths."""
    return [Step("application", "examples/service.py", partial(_application, run))]


def _application(run: Run) -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise AbsentError("aiohttp is not installed")
    turns, seconds, kills = (1, 0.2, 2) if run.settings.quick else (5, 2.0, 6)
    asyncio.run(measure(run, turns, seconds, kills))


def example() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("service", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── the same over streams ────────────────────────────────────────────────────────────────────────────


async def stream_worker(path: str) -> None:
    """A worker: the example's handler behind a Unix socket."""
    nearest = example().nearest

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unpacker = msgpack.Unpacker()
        with contextlib.suppress(EOFError):
            while True:
                unpacker.feed(await more(reader))
                for number, args in unpacker:
                    writer.write(msgpack.packb([number, await nearest(*args)]))
                    await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    await server.serve_forever()


async def stream_front(port: int, folder: str) -> None:
    """The front end."""
    from aiohttp import web

    clients = [
        StreamClient(*await asyncio.open_unix_connection(f"{folder}/{number}")) for number in range(WORKERS)
    ]

    async def get(request: web.Request) -> web.Response:
        row, count = int(request.query["row"]), int(request.query.get("count", 5))
        asked = [client.call([part, WORKERS, row, count]) for part, client in enumerate(clients)]
        best = sorted(itertools.chain(*await asyncio.gather(*asked)))[:count]
        return web.json_response({"workers": WORKERS, "nearest": best})

    app = web.Application()
    app.router.add_get("/nearest", get)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


# ── services that run ────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def running(*commands: list[str]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Processes, which are ended afterwards."""
    quiet = asyncio.subprocess.DEVNULL
    made = [
        await asyncio.create_subprocess_exec(sys.executable, *command, stdout=quiet, stderr=quiet)
        for command in commands
    ]
    try:
        yield made
    finally:
        for process in made:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        for process in made:
            await asyncio.wait_for(process.wait(), PATIENCE)


async def until(condition: Any) -> None:
    """Wait until something is there."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Clients:
    """Requests to the service at a port."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/nearest"
        self.workers: Counter[int] = Counter()
        self.failed = 0

    async def ask(self, row: int) -> int:
        """Ask once, and check the answer → how many workers gave it; 0: it failed."""
        async with self._session.get(self._url, params={"row": row, "count": 3}) as response:
            if response.status != 200:
                self.failed += 1
                return 0
            answer = await response.json()
        assert answer["nearest"][0] == [0.0, row]
        self.workers[answer["workers"]] += 1
        return int(answer["workers"])

    async def there(self) -> bool:
        """Whether the service answers with all its workers."""
        import aiohttp

        with contextlib.suppress(aiohttp.ClientError):
            return await self.ask(1) == WORKERS
        return False

    async def load(self, at_once: int, seconds: float) -> list[float]:
        """Keep so many requests under way → seconds of each."""
        taken: list[float] = []
        end = time.perf_counter() + seconds

        async def client(row: int) -> None:
            while (began := time.perf_counter()) < end:
                await self.ask(row)
                taken.append(time.perf_counter() - began)

        await asyncio.gather(*map(client, range(at_once)))
        return taken


def worker_pid(agent: int, rank: int) -> int | None:
    """The process of a rank of the job that an agent runs, found by its environment among its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    for pid in parents:
        above = pid
        while above in parents and above != agent:
            above = parents[above]
        if above == agent and pid != agent:
            with contextlib.suppress(OSError):
                if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                    return pid
    return None


async def kill_some(agent: int, clients: Clients, kills: int) -> None:
    """Kill a worker after the other, each when the one before is back."""
    for number in range(kills):
        await asyncio.sleep(1)
        pid = worker_pid(agent, 1 + number % WORKERS)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        await until(clients.there)


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────


async def measure(run: Run, turns: int, seconds: float, kills: int) -> None:
    """Measure both in turns, then kill."""
    import aiohttp

    port, other = free_port(), free_port()
    here = ["-m", "benchmarks.speed.suites.application"]
    agent = ["-m", "aiodist", "run", "--nproc-per-node", str(WORKERS + 1), "--max-restarts", "100"]
    with tempfile.TemporaryDirectory() as folder:
        workers = [[*here, "worker", f"{folder}/{number}"] for number in range(WORKERS)]
        async with (
            aiohttp.ClientSession() as session,
            running([*agent, str(EXAMPLE), str(port)], *workers) as processes,
        ):

            async def listening() -> bool:
                return len(os.listdir(folder)) == WORKERS

            await until(listening)
            async with running([*here, "front", folder, str(other)]):
                services = {"aiodist": Clients(session, port), "streams": Clients(session, other)}
                for clients in services.values():
                    await until(clients.there)
                taken: dict[tuple[str, int], list[float]] = {}
                for _, at_once in itertools.product(range(turns), AT_ONCE):
                    for name, clients in services.items():
                        run.progress.show(f"{name}, {at_once} at once")
                        taken.setdefault((name, at_once), []).extend(await clients.load(at_once, seconds))
            for (name, at_once), times in taken.items():
                add = partial(run.results.add, "application", peer=name, ranks=WORKERS + 1)
                add(f"{at_once} at once", values=times)
                add(f"{at_once} at once, p99", values=[quantile(times, 0.99)])
                add(f"{at_once} at once, a second", values=[len(times) / (turns * seconds)], unit="")
            clients = Clients(session, port)
            killing = asyncio.create_task(kill_some(processes[0].pid, clients, kills))
            times, began = [], time.perf_counter()
            while not killing.done():
                times += await clients.load(8, 0.5)
            await killing
            lived = ", ".join(f"{n} workers: {count}" for n, count in sorted(clients.workers.items()))
            run.results.note(
                f"application: {kills} workers killed in {time.perf_counter() - began:.1f} s: {len(times)} "
                f"requests, {clients.failed} failed, slowest {max(times) * 1e3:.0f} ms, answered by {lived}"
            )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        if sys.argv[1] == "worker":
            dist.run(stream_worker(sys.argv[2]))
        else:
            dist.run(stream_front(int(sys.argv[3]), sys.argv[2]))
