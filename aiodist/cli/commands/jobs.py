"""`aiodist jobs`: the jobs of this host and user. One that has failed is shown for ten minutes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiodist.base.sanitize import one_line
from aiodist.cli.parser import Parser
from aiodist.cli.show import show

if TYPE_CHECKING:
    from aiodist.observe.summary import Summary

_MORE = "look closer: aiodist top JOB, aiodist explain JOB; in a browser: aiodist dashboard JOB"
_HEAD = ("JOB", "SCRIPT", "RANKS", "HOSTS", "AGE", "STATE", "TROUBLE")


def main(argv: Sequence[str]) -> int:
    """Print a line for each job, the newest first."""
    parser = Parser("aiodist jobs", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(list(argv))
    from aiodist.observe.choice import short_keys
    from aiodist.observe.ended import ended_jobs
    from aiodist.observe.host import check_records, read_jobs
    from aiodist.observe.summary import summary

    check_records()
    jobs = read_jobs()
    ended = ended_jobs(jobs)
    keys = short_keys([*jobs, *(job for job, _ in ended)])
    found = [summary(None, job) for job in jobs]
    found += [summary(None, job, outcome=outcome) for job, outcome in ended]
    if args.json:
        show(json.dumps([job.to_json() for job in found], indent=2))
    elif found:
        show(_aligned([_HEAD, *(_line(keys[job.key], job) for job in found)]))
        show(_MORE)
    else:
        show("no job of this user runs on this host")
    return 0


def _line(key: str, job: Summary) -> tuple[str, ...]:
    from aiodist.observe.figures import span

    seen = f"{len(job.rows)}/{job.size}"
    state = ", ".join(f"{count} {doing}" for doing, count in job.totals.doing.items())
    if job.code is not None:
        state = f"failed, code {job.code}"
    return key, job.script, seen, ",".join(job.hosts), span(job.age), state, job.trouble or "none"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines in columns; what came from ranks is made fit for a terminal."""
    shown = [[one_line(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in shown
    )
