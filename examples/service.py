"""An HTTP service whose workers die and come back while it serves: the nearest rows of a table.

    aiodist run --nproc-per-node 4 --max-restarts 100 examples/service.py 8080
    curl 'localhost:8080/nearest?row=17&count=3'

Rank 0 takes requests and asks every worker for the nearest rows of its part of the table. Kill a worker at
any moment: its part goes to another one, and the launcher starts it again.
"""

import asyncio
import functools
import itertools
import os
import sys

import numpy as np
from aiohttp import web

import aiodist as dist

TABLE = np.random.default_rng(7).random((100_000, 16), np.float32)


@functools.cache
def part_of(part: int, parts: int) -> np.ndarray:
    """A worker's part of the table: every `parts`-th row."""
    return TABLE[part::parts].copy()


async def nearest(part: int, parts: int, row: int, count: int) -> list[list[float]]:
    """The handler: the nearest rows of a part → [distance, row] of each."""
    distances = ((part_of(part, parts) - TABLE[row]) ** 2).sum(1)
    best = np.argsort(distances)[:count]
    return [[float(distances[i]), int(i) * parts + part] for i in best]


class Service:
    def __init__(self, pg: dist.ProcessGroup) -> None:
        self.pg = pg

    async def keep(self) -> None:
        """Form the next group again and again, of the living ranks and newcomers."""
        while True:
            try:
                while not await self.pg.pending_joins():  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            except dist.GroupBroken:
                pass
            self.pg = await self.pg.rebuild()

    async def ask(self, part: int, parts: int, row: int, count: int) -> list[list[float]]:
        """Ask a worker for a part. If the worker is lost, ask another one: a part may be asked twice."""
        for turn in range(20):
            pg = self.pg
            workers = [rank for rank in range(pg.size) if rank != pg.rank] or [pg.rank]
            try:
                worker = workers[(part + turn) % len(workers)]
                return await pg.call(worker, nearest, part, parts, row, count, timeout=5)
            except dist.CallError:
                await asyncio.sleep(0.02 * turn)
        raise web.HTTPServiceUnavailable

    async def get(self, request: web.Request) -> web.Response:
        row, count = int(request.query["row"]) % len(TABLE), int(request.query.get("count", 5))
        parts = max(1, self.pg.size - 1)
        found = await asyncio.gather(*(self.ask(part, parts, row, count) for part in range(parts)))
        best = sorted(itertools.chain(*found))[:count]
        return web.json_response({"workers": parts, "nearest": best})


async def main(port: int) -> None:
    async with await dist.join() as pg:
        service = Service(pg)
        pg.handler(nearest)
        if os.environ.get("RANK", "0") == "0":
            app = web.Application()
            app.router.add_get("/nearest", service.get)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
        await service.keep()


if __name__ == "__main__":
    dist.run(main(int(sys.argv[1])))
