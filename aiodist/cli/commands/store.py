"""`aiodist store`: a rendezvous server on its own, for jobs whose launcher has none."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiodist.base.errors import UsageError
from aiodist.base.terminal import painter, takes_colour
from aiodist.cli.parser import Parser
from aiodist.cli.show import show
from aiodist.net.stop_signals import stop_on
from aiodist.net.tasks import settle

if TYPE_CHECKING:
    from aiodist.rendezvous.server import StoreServer

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM; prints host:port, on a line of its own, once it listens.

    Returns 1 where it had to stop because it could not write its files.
    """
    parser = Parser("aiodist store", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, and no other (127.0.0.1)")
    parser.add_argument("--port", type=int, default=29500, help="0 picks a free one (29500)")
    parser.add_argument("--job", default=None, help="name of the job (AIODIST_JOB, else the default's)")
    parser.add_argument(
        "--jobs",
        default=None,
        metavar="PATH",
        help="serve many jobs: a folder with a file for each (named as the job, holding its secret), or one "
        "file of lines 'job secret'; read again for each client that comes",
    )
    parser.add_argument(
        "--data",
        default=None,
        metavar="DIR",
        help="keep the store in this folder: confirmed changes survive a restart (default: in memory)",
    )
    parser.add_argument(
        "--limit", default="1GiB", metavar="SIZE", help="how much each job may keep in the store (1GiB)"
    )
    args = parser.parse_args(list(argv))
    args.limit = _size(args.limit)
    if args.jobs is not None and args.job is not None:
        raise UsageError(
            "--job and --jobs contradict each other", hint="--jobs names all jobs that are served"
        )
    from aiodist.net.shortage import raise_descriptors

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    raise_descriptors()
    return asyncio.run(_serve(args))


def _size(text: str) -> int:
    """'512MiB' in bytes."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or not unit or int(match[1]) == 0:
        raise UsageError(f"--limit={text} is not a size", hint="Write for example 512MiB or 4GiB")
    return int(match[1]) * unit


async def _start(args: Namespace) -> StoreServer:
    from aiodist.base.environment import check_open_port, job_id, job_name, plain_host, secret, switch, tls
    from aiodist.rendezvous.jobs import JobSecrets
    from aiodist.rendezvous.server import StoreServer

    host, port, data, limit = plain_host(args.host, "--host"), args.port, args.data, args.limit
    key = tls(os.environ)
    if args.jobs is not None:
        jobs = JobSecrets(args.jobs)
        return await StoreServer.start_many(host, port, jobs, tls=key, data=data, limit=limit)
    known = secret(os.environ)
    check_open_port(host, known, switch(os.environ, "AIODIST_ALLOW_INSECURE"))
    job = job_name("--job", args.job) if args.job else job_id(os.environ)
    return await StoreServer.start(host, port, job, known, tls=key, data=data, limit=limit)


async def _serve(args: Namespace) -> int:
    from aiodist.net.sockets import join_address

    ended = stop_on({signum: 128 + signum for signum in (signal.SIGINT, signal.SIGTERM)})
    server = await _start(args)
    failing = asyncio.ensure_future(server.wait_failed())
    failing.add_done_callback(lambda done: None if done.cancelled() else settle(ended, 1))
    try:
        paint = painter(takes_colour(sys.stdout.isatty(), os.environ))
        show(paint("bold", join_address(server.host, server.port)))
        return await ended
    finally:
        failing.cancel()
        await server.aclose()
