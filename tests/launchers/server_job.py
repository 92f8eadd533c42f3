"""An ASGI application whose processes are ranks: each says hello when it starts, and the servers then end."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import aiodist as dist


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Form the group within the server's loop, at startup."""
    if scope["type"] != "lifespan":
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
    os.kill(int(os.environ.get("SERVER_PID", os.getpid())), signal.SIGTERM)
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})
