"""The duration of an all_reduce while thousands of silent connections to the ranks are held.

`main(connections)` runs a job of two processes on this host and measures, in turns within one run, a 1 KiB
all_reduce without such connections and with them. They are spread over the ranks' listeners and say nothing;
one that is dropped comes back after `PAUSE` seconds.

    python -m tests.transport.silent_load 2000
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.rendezvous import StoreServer

ELEMENTS = 256  # float32: 1 KiB
PAUSE = 1.0  # seconds until a connection that was dropped comes back
WORLD = 2
_HOST = "127.0.0.1"


def main(
    connections: int, *, rounds: int = 5, seconds: float = 2.0, transport: str = "auto"
) -> dict[str, Any]:
    """Measure.

    Args:
        connections: silent ones in all.
        rounds: how often it is measured without and with them, in turns.
        seconds: of each measurement, about.
        transport: AIODIST_TRANSPORT of the job.

    Returns:
        The figures: calls, and p50 and p99 in µs of all of them, `without` and `with`; the ratios of both;
        how many connections came back (`returned`); how many were connected at once (`held`); growth of the
        ranks' memory in KiB (`growth`).
    """
    return asyncio.run(_measure(connections, rounds, seconds, transport))


# ── this process: the store, the connections, the orders ──────────────────────────────────────────


class SilentConnections:
    """Connections that say nothing, to several addresses in turn; while `open`, each comes back."""

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._addresses = addresses
        self._socks: set[socket.socket] = set()
        self._open = False
        self.returned = 0

    async def gather(self, count: int) -> None:
        """Connect so many, and have all of them accepted."""
        self._open = True
        for start in range(0, count, 100):
            await asyncio.gather(*(self._connect(number) for number in range(start, min(start + 100, count))))

    def close(self) -> None:
        """Hang up, all of them."""
        self._open = False
        while self._socks:
            self._drop(self._socks.pop())

    @property
    def count(self) -> int:
        """The number that are connected."""
        return len(self._socks)

    async def _connect(self, number: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await self._loop.sock_connect(sock, self._addresses[number % len(self._addresses)])
        except OSError:
            sock.close()
            self._later(number)
            return
        if not self._open:
            sock.close()
            return
        self._socks.add(sock)
        self._loop.add_reader(sock.fileno(), self._dropped, sock, number)

    def _dropped(self, sock: socket.socket, number: int) -> None:
        self._socks.discard(sock)
        self._drop(sock)
        self._later(number)

    def _drop(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock.fileno())
        sock.close()

    def _later(self, number: int) -> None:
        if self._open:
            self.returned += 1
            self._loop.call_later(PAUSE, self._return, number)

    def _return(self, number: int) -> None:
        if self._open:
            self._task = self._loop.create_task(self._connect(number))


async def _measure(connections: int, rounds: int, seconds: float, transport: str) -> dict[str, Any]:
    secret = secrets.token_hex(16)
    async with (
        await StoreServer.start(_HOST, 0, "silent", secret.encode()) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        ranks = []
        for rank in range(WORLD):
            environ = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "AIODIST_STORE": f"{_HOST}:{server.port}",
                "AIODIST_JOB": "silent",
                "AIODIST_SECRET": secret,
                "AIODIST_TRANSPORT": transport,
            }
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "rank"),
                env=environ,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            stack.push_async_callback(_end, process)
            ranks.append(process)
        ports = [await _hear(process) for process in ranks]
        silent = SilentConnections([(_HOST, port) for found in ports for port in found["ports"]])
        stack.callback(silent.close)
        first = await _order(ranks, 2000)  # warm
        count = max(200, int(seconds * 1e9 * 2000 / sum(first[0]["ns"])))
        times: dict[bool, list[float]] = {False: [], True: []}
        held, memory = 0, []
        for _ in range(rounds):
            for attacked in (False, True):
                if attacked:
                    await silent.gather(connections)
                answers = await _order(ranks, count)
                times[attacked] += answers[0]["ns"]
                memory.append(sum(answer["kib"] for answer in answers))
                if attacked:
                    held = max(held, silent.count)
                    silent.close()
        without, under = _figures(times[False]), _figures(times[True])
        return {
            "connections": connections,
            "transport": transport,
            "without": without,
            "with": under,
            "ratio_p50": under["p50_us"] / without["p50_us"],
            "ratio_p99": under["p99_us"] / without["p99_us"],
            "returned": silent.returned,
            "held": held,
            "growth": memory[-1] - memory[0],
        }


def _figures(ns: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(ns, [50, 99]) / 1e3
    return {"calls": len(ns), "p50_us": float(p50), "p99_us": float(p99), "max_us": max(ns) / 1e3}


async def _order(ranks: list[asyncio.subprocess.Process], count: int) -> list[dict[str, Any]]:
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write(f"{count}\n".encode())
    return [await _hear(process) for process in ranks]


async def _hear(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    size = int(await process.stdout.readline() or b"0")
    if not size:
        raise RuntimeError("a rank has ended")
    return json.loads(await process.stdout.readexactly(size))


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(60):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


# ── a rank ────────────────────────────────────────────────────────────────────────────────────────


async def _rank() -> None:
    import time

    async with await dist.init_process_group(timeout=60) as pg:
        _say({"ports": _listening()})
        loop = asyncio.get_running_loop()
        values = pg.empty((ELEMENTS,), np.float32)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await pg.barrier()
            taken = []
            for number in range(int(line)):
                values.fill(pg.rank + number % 100)
                start = time.perf_counter_ns()
                await pg.all_reduce(values)
                taken.append(time.perf_counter_ns() - start)
                assert values[-1] == WORLD * (number % 100) + 1  # 0 + 1
            _say({"ns": taken, "kib": _resident()})


def _say(value: Any) -> None:
    data = json.dumps(value).encode()
    sys.stdout.buffer.write(b"%d\n" % len(data) + data)
    sys.stdout.buffer.flush()


def _listening() -> list[int]:
    """The TCP ports of this process."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{name}"))
    found = []
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(int(fields[1].rpartition(":")[2], 16))
    return found


def _resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        dist.run(_rank())
    else:
        transport = sys.argv[2] if len(sys.argv) > 2 else "auto"
        print(json.dumps(main(int(sys.argv[1]), transport=transport), indent=1))
