"""`aiodist stacks [JOB] [RANK]`: what each rank of a job does now: line, stack, and asyncio's tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiodist.base.errors import UsageError, name_ranks
from aiodist.base.sanitize import one_line
from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job, the_job
from aiodist.cli.show import show

if TYPE_CHECKING:
    from aiodist.observe import RankView


def main(argv: Sequence[str]) -> int:
    """Ask all ranks of this host at once, and print what they say."""
    parser = Parser("aiodist stacks", description=__doc__, example="aiodist stacks train.py 3")
    add_job(parser, more="`aiodist jobs`")
    parser.add_argument("rank", metavar="RANK", nargs="?", type=int, help="one rank (default: all)")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(list(argv))
    from aiodist.observe.ask import ask
    from aiodist.observe.choice import SHORTEST
    from aiodist.observe.rank_lines import rank_lines

    if args.rank is None and args.job is not None and args.job.isdecimal() and len(args.job) < SHORTEST:
        args.job, args.rank = None, int(args.job)  # no key is that short
    job = the_job(args.job, stacks=True)
    views = [view for view in job.ranks if args.rank in (None, view.rank)]
    if not views:
        there = name_ranks([view.rank for view in job.ranks])
        raise UsageError(f"no rank {args.rank} of {one_line(job.name)} is seen", hint=f"Seen: {there}")
    asked = ask(views)
    if args.json:
        show(json.dumps([_plain(view) for view in asked], indent=2))
    else:
        show("\n\n".join("\n".join(rank_lines(view)) for view in asked))
    return 0


def _plain(view: RankView) -> dict[str, object]:
    from dataclasses import asdict

    stacks = asdict(view.stacks) if view.stacks is not None else None
    found = {"rank": view.rank, "host": view.host, "pid": view.recording.pid, "doing": view.doing.name}
    return {**found, "since": view.since, "stacks": stacks}
