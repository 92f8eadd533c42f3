"""`aiodist doctor`: what this machine has for aiodist, what each missing part costs, and how to add it."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence

from aiodist.base.errors import UsageError
from aiodist.base.terminal import CLEAR, bar, painter, takes_colour
from aiodist.cli.parser import Parser
from aiodist.cli.show import show


def main(argv: Sequence[str]) -> int:
    """Print the report; 0 if the host backend works, 1 if not."""
    parser = Parser("aiodist doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print it for machines")
    parser.add_argument(
        "-n",
        "--nproc-per-node",
        "--nproc_per_node",
        type=int,
        metavar="N",
        help="ranks that this host is to have (a launcher's number, else one for each core)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds that drivers and libraries have to answer (20)",
    )
    args = parser.parse_args(list(argv))
    if args.nproc_per_node is not None and args.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node must be at least 1, got {args.nproc_per_node}")
    if not 0 < args.limit < float("inf"):
        raise UsageError(f"--limit must be a positive number of seconds, got {args.limit:g}")
    from aiodist.cli.doctor.examine import examine
    from aiodist.cli.doctor.report import as_dict, as_lines, host_works

    live = sys.stderr.isatty()
    waiting = _say if live else None
    report = examine(os.environ, ranks=args.nproc_per_node, limit=args.limit, waiting=waiting)
    if live:
        print(CLEAR, end="", file=sys.stderr, flush=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever a variable holds, or a terminal lacks
    if args.json:
        show(json.dumps(as_dict(report), indent=1))
    else:
        paint = painter(takes_colour(sys.stdout.isatty(), os.environ))
        show("\n".join(as_lines(report, paint)))
    return 0 if host_works(report) else 1


def _say(about: str, done: int, total: int) -> None:
    print(f"{CLEAR}{bar(done, total)}  waiting for {about} …", end="", file=sys.stderr, flush=True)
