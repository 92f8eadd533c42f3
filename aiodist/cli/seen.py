"""The job that a command is about, as it is seen from here."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from typing import TYPE_CHECKING

from aiodist.base.errors import UsageError
from aiodist.cli.parser import Parser

if TYPE_CHECKING:
    from aiodist.observe import JobView


def add_job(parser: Parser, *, more: str = "", dumps: bool = False) -> None:
    """Give a command's parser the argument 'job'.

    Args:
        parser: of the command.
        more: what happens where none is named, beside that it is the only job.
        dumps: it may be a dump's folder, too.
    """
    how = "its script, or the beginning of its key"
    only = f"(the only job{f'; {more}' if more else ''})"
    parser.add_argument(
        "job",
        metavar="JOB|DIR" if dumps else "JOB",
        nargs="?",
        help=f"a job here ({how}), or a dump's folder {only}" if dumps else f"{how} {only}",
    )


def the_job(wanted: str | None, *, most: int | None = None, stacks: bool = False) -> JobView:
    """All of a job. Where only a part can be seen, standard error says why.

    Args:
        wanted: its script, or the beginning of its key; None: the only one that runs.
        most: operations of each rank; None: a few.
        stacks: whether the ranks of other hosts are to say what they do.

    Raises:
        UsageError: there is none, or several could be meant; or this host's records cannot be read.
    """
    from aiodist.observe.choice import pick
    from aiodist.observe.ended import ended_job
    from aiodist.observe.host import check_records, read_jobs
    from aiodist.observe.source import FEW, whole

    check_records()
    few = FEW if most is None else most
    if (folder := ended_job(wanted)) is not None:
        raise UsageError(
            "the only job has failed" if wanted is None else f"the job {wanted!r} has failed",
            hint=f"See: aiodist explain {shlex.quote(folder)}, aiodist trace {shlex.quote(folder)}",
        )
    job, note = asyncio.run(whole(pick(read_jobs(), wanted), os.environ, most=few, stacks=stacks))
    if note:
        print(note, file=sys.stderr)
    return job


def again(job: JobView) -> JobView:
    """The job, looked at once more; as it was, where it has gone."""
    from aiodist.observe.host import read_jobs
    from aiodist.observe.source import whole

    found = next((one for one in read_jobs(job.key) if one.key == job.key), job)
    return asyncio.run(whole(found, os.environ))[0]
