"""`aiodist dashboard [JOB]`: a web page that shows what each rank of a job does, live.

It prints an address that works once, in one browser. Only this host can open it. On another
host, run ssh -L PORT:127.0.0.1:PORT HOST first. Ctrl-C ends the command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from aiodist.base.environment import plain_host, tuning
from aiodist.base.errors import UsageError
from aiodist.base.sanitize import one_line
from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job

_LONGEST = 2000


def main(argv: Sequence[str]) -> int:
    """Serve the page until somebody ends it; 143 after SIGTERM."""
    parser = Parser("aiodist dashboard", description=__doc__)
    add_job(parser, more="waits for one if there is none")
    parser.add_argument(
        "--host", metavar="ADDR", default="127.0.0.1", help="address to listen on (127.0.0.1)"
    )
    parser.add_argument("--port", metavar="PORT", type=int, default=0, help="port to listen on (a free one)")
    parser.add_argument(
        "--allow-insecure", action="store_true", help="let other hosts connect, without encryption"
    )
    parser.add_argument(
        "--metrics-token-file",
        metavar="FILE",
        help="file with the bearer token of /metrics; made if it is missing",
    )
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(list(argv))
    need_aiohttp("dashboard")
    from aiodist.observe.dashboard.run import DashboardOptions, check, serve
    from aiodist.observe.host import check_records

    check_records()
    options = DashboardOptions(
        *(args.job, plain_host(args.host, "--host"), args.port, args.allow_insecure, args.metrics_token_file),
        after=tuning(os.environ).stall_after,
        beside=args.beside,
    )
    check(options)
    who = "" if args.beside else "aiodist dashboard: "
    out = sys.stdout if args.beside else sys.stderr
    return asyncio.run(serve(options, lambda text: _say(who + text, out), os.environ))


def need_aiohttp(who: str) -> None:
    """Refuse a command whose libraries are missing."""
    if find_spec("aiohttp") is None:
        raise UsageError(f"{who} needs aiohttp", hint="pip install 'aiodist[observe]'")


def _say(text: str, out: object) -> None:
    try:
        print(one_line(text, _LONGEST), file=out, flush=True)  # type: ignore[call-overload]
    except OSError:
        pass  # nobody listens any more
