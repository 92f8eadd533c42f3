"""An ASGI application whose processes are ranks: each says hello when it starts, and its server then ends.

SERVER_PID names the server that SIGTERM ends; SERVER_PORT one that ends after its first request.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np

import aiodist as dist


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Form the group within the server's loop, at startup."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    assert (await receive())["type"] == "lifespan.startup"
    async with await dist.init_process_group() as pg:
        total = np.array([pg.rank + 1.0])
        await pg.all_reduce(total)
        print(
            f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
            f"node {pg.node_rank} of {pg.node_count}, sum {total[0]:g}",
            flush=True,
        )
    await send({"type": "lifespan.startup.complete"})
    ending = asyncio.create_task(_end())
    assert (await receive())["type"] == "lifespan.shutdown"
    await ending
    await send({"type": "lifespan.shutdown.complete"})


async def _end() -> None:
    if pid := os.environ.get("SERVER_PID"):
        os.kill(int(pid), signal.SIGTERM)
        return
    while True:  # it listens soon
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["SERVER_PORT"]))
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        return
