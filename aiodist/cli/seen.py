"""The job that a command is about, as it is seen from here."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from aiodist.sanitize import one_line

if TYPE_CHECKING:
    from aiodist.observe import JobView


def the_job(wanted: str | None, *, most: int | None = None, stacks: bool = False) -> JobView:
    """All of a job. Where only a part can be seen, standard error says why.

    Args:
        wanted: its script, or the beginning of its key; None: the newest.
        most: operations of each rank; None: a few.
        stacks: whether the ranks of other hosts are to say what they do.

    Raises:
        UsageError: there is none, or several could be meant.
    """
    from aiodist.observe.choice import pick
    from aiodist.observe.host import look_at_jobs
    from aiodist.observe.source import FEW, whole

    few = FEW if most is None else most
    jobs = look_at_jobs()
    job, note = asyncio.run(whole(pick(jobs, wanted), os.environ, most=few, stacks=stacks))
    if wanted is None and len(jobs) > 1:
        print(f"of {len(jobs)} jobs the newest, {one_line(job.name)}: aiodist jobs", file=sys.stderr)
    if note:
        print(note, file=sys.stderr)
    return job
