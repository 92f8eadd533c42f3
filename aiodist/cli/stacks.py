"""`aiodist stacks [JOB] [RANK]`: what each rank of a job does now: line, stack, and asyncio's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aiodist.cli.parser import Parser
from aiodist.cli.seen import the_job
from aiodist.cli.show import show
from aiodist.errors import UsageError, name_ranks
from aiodist.sanitize import one_line

if TYPE_CHECKING:
    from aiodist.observe import RankView


def main(argv: Sequence[str]) -> int:
    """Ask all ranks of this host at once, and print what they say."""
    parser = Parser("aiodist stacks", description=__doc__, example="aiodist stacks train.py 3")
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="its script, or the beginning of its key (the only job; `aiodist jobs`)",
    )
    parser.add_argument("rank", metavar="RANK", nargs="?", type=int, help="one rank (else all)")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(list(argv))
    from aiodist.observe.ask import ask
    from aiodist.observe.choice import SHORTEST

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
        show("\n\n".join("\n".join(_lines(view)) for view in asked))
    return 0


def _plain(view: RankView) -> dict[str, object]:
    from dataclasses import asdict

    stacks = asdict(view.stacks) if view.stacks is not None else None
    found = {"rank": view.rank, "host": view.host, "pid": view.recording.pid, "doing": view.doing.name}
    return {**found, "since": view.since, "stacks": stacks}


def _lines(view: RankView) -> Iterator[str]:
    from aiodist.observe.figures import span
    from aiodist.observe.rates import named, placed

    state = f"{view.doing.name} for {span(view.since)}" if view.since else view.doing.name
    yield f"rank {view.rank}, {one_line(view.host)}:{view.recording.pid}: {state}"
    for record in view.recording.pending:
        where = f" at {placed(record.line)}" if record.line is not None else ""
        waits = span(max(0.0, view.now - record.issued))
        yield f"  {one_line(f'{named(record)}{where}')} is pending for {waits}"
    stacks = view.stacks
    if stacks is None:
        yield f"  {_why_not(view)}"
        return
    how = " (a call holds the interpreter: the kernel made it write this)" if stacks.by_signal else ""
    yield f"  the event loop's thread{how}"
    yield from (f"    {one_line(line)}" for line in stacks.thread or ("has ended",))
    for title, lines in (("tasks", stacks.tasks), ("other threads", stacks.others)):
        if lines:
            yield f"  {title}"
            yield from (f"    {_indent(line)}{one_line(line)}" for line in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _why_not(view: RankView) -> str:
    """Why nothing is known of what a process does."""
    from aiodist.observe.host import host_name
    from aiodist.observe.view import Doing

    if view.doing in (Doing.dead, Doing.left):
        return "it has ended"
    if view.doing is Doing.stopped:
        return "it is stopped by a signal or a debugger: `kill -CONT` lets it go on"
    if view.host != host_name():
        return "it is on another host: ask there"
    return "it has not answered"
