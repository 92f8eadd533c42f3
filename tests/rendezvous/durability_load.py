"""Many clients write to `aiodist store --data` while it is killed and started again, over and over.

    python -m tests.rendezvous.durability_load 200 12

Every client does one thing after the other: add to a number that all share, append to a list of its own,
swap a key of its own, set one. What the store confirmed is compared with what it holds at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiodist.base.errors import AiodistError
from aiodist.rendezvous import TcpStore

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
JOB = "load"
SECRET = "durable"
PATIENCE = 120.0  # of a client for one call
_TOTAL = "total"


class Server:
    """`aiodist store --data` as a process of its own."""

    def __init__(self, data: Path) -> None:
        self.port = 0
        self._data = data
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, on the port that it had before; return when it listens."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "AIODIST_SECRET": SECRET}
        command = [
            "-m",
            "aiodist",
            "store",
            "--port",
            str(self.port),
            "--job",
            JOB,
            "--data",
            str(self._data),
        ]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=environ
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if not line:
            raise RuntimeError(f"the store ended with {await self._process.wait()}")
        self.port = int(line.rpartition(":")[2])

    async def kill(self) -> None:
        """SIGKILL, and return when it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.communicate()


class Client:
    """One client: what it asked, and what was confirmed."""

    def __init__(self, number: int, store: TcpStore) -> None:
        self.number = number
        self.store = store
        self.sums: list[int] = []
        self.appended: list[bytes] = []
        self.held = b""
        self.swapped = b""
        self.delays: list[float] = []
        self.errors: list[str] = []

    @property
    def confirmed(self) -> int:
        """Writes that the store confirmed."""
        return len(self.delays)

    async def write(self, ended: asyncio.Event) -> None:
        """One write after the other, until told to end."""
        while not ended.is_set():
            for step in (self._add, self._append, self._swap, self._set):
                began = time.perf_counter()
                try:
                    await step()
                except AiodistError as error:
                    self.errors.append(str(error))
                    return
                self.delays.append(time.perf_counter() - began)

    async def _add(self) -> None:
        self.sums.append(await self.store.add(_TOTAL, 1))

    async def _append(self) -> None:
        word = b"%d " % len(self.appended)
        await self.store.append(f"list/{self.number}", word)
        self.appended.append(word)

    async def _swap(self) -> None:
        wanted = b"%d" % len(self.delays)
        found = await self.store.compare_set(f"swap/{self.number}", self.swapped, wanted)
        if found != wanted:
            self.errors.append(f"swapped {self.swapped!r} for {wanted!r}, found {found!r}")
        self.swapped = wanted

    async def _set(self) -> None:
        wanted = b"%d" % len(self.delays)
        await self.store.set(f"set/{self.number}", wanted)
        self.held = wanted

    async def compare(self) -> tuple[int, int]:
        """Writes of this client that the store does not hold, and that it holds twice."""
        lost = twice = 0
        words = (await self.store.get(f"list/{self.number}")).split()
        wanted = [word.strip() for word in self.appended]
        lost += len(set(wanted) - set(words))
        twice += len(words) - len(set(words))
        lost += await self.store.get(f"set/{self.number}") != self.held
        lost += await self.store.get(f"swap/{self.number}") != self.swapped
        return lost, twice


async def main(
    clients: int, kills: int, seed: int = 0, pause: tuple[float, float] = (0.2, 0.6)
) -> dict[str, Any]:
    """Run it.

    Args:
        clients: that write at the same time, all from this process.
        kills: of the server, each followed by a start.
        seed: of the moments when it is killed.
        pause: seconds from a start to the next kill, at least and at most.

    Returns:
        acknowledged writes; of these lost, and applied twice; client_errors; restarts; seconds; delays of the
        writes in ms (p50, p99, max), and the longest delay that each client saw.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="aiodist-durability-") as folder:
        server = Server(Path(folder) / "data")
        crowd: list[Client] = []
        writing: list[asyncio.Task[None]] = []
        try:
            await server.start()
            for number in range(clients):
                store = await TcpStore.connect(HOST, server.port, JOB, SECRET.encode(), PATIENCE)
                crowd.append(Client(number, store))
            ended = asyncio.Event()
            began = time.perf_counter()
            writing = [asyncio.ensure_future(client.write(ended)) for client in crowd]
            for _ in range(kills):
                await asyncio.sleep(rng.uniform(*pause))
                await server.kill()
                await server.start()
                before = sum(client.confirmed for client in crowd)
                goal = before + clients  # they are back
                while sum(client.confirmed for client in crowd) < goal:
                    if all(task.done() for task in writing):
                        break
                    await asyncio.sleep(0.01)
            ended.set()
            await asyncio.gather(*writing)
            seconds = time.perf_counter() - began
            return {"clients": clients, "seconds": round(seconds, 2), **await _result(crowd, kills)}
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
            for client in crowd:
                await client.store.aclose()
            await server.kill()


async def _result(crowd: list[Client], kills: int) -> dict[str, Any]:
    sums = [total for client in crowd for total in client.sums]
    held = int(await crowd[0].store.get(_TOTAL))
    lost, twice = (
        len(set(sums) - set(range(1, held + 1))) + max(0, len(sums) - held),
        max(0, held - len(sums)),
    )
    twice += len(sums) - len(set(sums))
    for client in crowd:
        more_lost, more_twice = await client.compare()
        lost += more_lost
        twice += more_twice
    delays = sorted(delay * 1e3 for client in crowd for delay in client.delays)
    longest = sorted((max(client.delays) * 1e3 for client in crowd if client.delays), reverse=True)
    return {
        "acknowledged": sum(client.confirmed for client in crowd),
        "lost": lost,
        "applied_twice": twice,
        "client_errors": [error for client in crowd for error in client.errors],
        "restarts": kills,
        "delay_ms": {
            "p50": round(delays[len(delays) // 2], 2),
            "p99": round(delays[int(len(delays) * 0.99)], 2),
            "max": round(delays[-1], 2),
        },
        "longest_delay_of_each_client_ms": {
            "p50": round(longest[len(longest) // 2], 2),
            "max": round(longest[0], 2),
        },
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]))), indent=1))
