"""`aiodist store`: a rendezvous server on its own, for jobs whose launcher brings none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from aiodist.cli.parser import Parser


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM; prints host:port, on a line of its own, once it listens."""
    parser = Parser("aiodist store", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, and no other (127.0.0.1)")
    parser.add_argument("--port", type=int, default=29500, help="0 picks a free one (29500)")
    parser.add_argument("--job", default=None, help="name of the job (AIODIST_JOB, else the default's)")
    args = parser.parse_args(list(argv))
    from aiodist.environment import job_id, secret
    from aiodist.errors import UsageError
    from aiodist.launch.secret import is_loopback

    key = secret(os.environ)
    if not key and not is_loopback(args.host) and os.environ.get("AIODIST_ALLOW_INSECURE") != "1":
        raise UsageError(
            f"a store on {args.host} without a secret is open to everybody",
            hint="Set AIODIST_SECRET here and for the job, or AIODIST_ALLOW_INSECURE=1",
        )
    return asyncio.run(_serve(args.host, args.port, args.job or job_id(os.environ), key))


async def _serve(host: str, port: int, job: str, secret: bytes) -> int:
    from aiodist.rendezvous.server import StoreServer

    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(signum: int) -> None:
        if not ended.done():
            ended.set_result(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, end, signum)
    server = await StoreServer.start(host, port, job, secret)
    shown = f"[{server.host}]" if ":" in server.host else server.host
    print(f"{shown}:{server.port}", flush=True)
    try:
        return 128 + await ended
    finally:
        await server.aclose()
