"""`aiodist explain [JOB|DIR]`: why a job stands still, or is slow, or what happened in it.

If the job runs, the command asks the ranks that are the cause what they do. If the job has ended, the command
reads the dump that its ranks have left.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job, again, the_job
from aiodist.cli.show import show

_AFTER = 1.0  # seconds for which an operation has to be pending: who asks need not wait for the box
_SPEED = 1.0  # seconds between two looks, where nothing stands still
_SLOW = ("straggler", "slow link")  # verdicts on what goes on


def main(argv: Sequence[str]) -> int:
    """Print the verdicts on a job that runs, in a box each, or what it does; else what has happened."""
    parser = Parser("aiodist explain", description=__doc__, example="aiodist explain train.py")
    add_job(parser, dumps=True)
    args = parser.parse_args(list(argv))
    if args.job is not None and (os.sep in args.job or Path(args.job).is_dir()):
        _explain_dump(args.job)
    else:
        _explain_job(args.job)
    return 0


def _explain_dump(folder: str) -> None:
    from aiodist.observe.clocks import place
    from aiodist.observe.dumps import read_dump
    from aiodist.observe.explain import ended, explain
    from aiodist.observe.verdict import judge

    dump = read_dump(folder)
    if dump.job is None:
        assert dump.outcome is not None
        show("\n".join(ended(dump.outcome)))
    else:
        job = place(dump.job)
        command = f"aiodist trace {shlex.quote(folder)} -o trace.json"
        show("\n".join(explain(job, judge(job), command, outcome=dump.outcome, over=True)))
    if dump.older:
        show(f"(the newest of {dump.older + 1} in it; name the folder of another one to see that)")


def _explain_job(wanted: str | None) -> None:
    from aiodist.observe.ask import ask
    from aiodist.observe.box import render
    from aiodist.observe.clocks import place
    from aiodist.observe.ended import ended_job
    from aiodist.observe.explain import explain
    from aiodist.observe.verdict import judge
    from aiodist.observe.view import Doing, JobView
    from aiodist.observe.well import well

    if (folder := ended_job(wanted)) is not None:
        _explain_dump(folder)
        return
    job = place(the_job(wanted, stacks=True))
    culprits = {rank for verdict in judge(job, _AFTER) for rank in verdict.ranks}
    job = JobView(job.key, tuple(ask(job.ranks, only=culprits)))
    verdicts = judge(job, _AFTER)
    for verdict in verdicts:
        show(render(verdict))
    goes_on = any(rank.doing is not Doing.left for rank in job.ranks)
    if any(rank.doing is Doing.dead for rank in job.ranks) or not (goes_on or verdicts):
        show("\n".join(explain(job, verdicts, f"aiodist trace {job.key} -o trace.json")))
    elif all(verdict.kind in _SLOW for verdict in verdicts):
        time.sleep(_SPEED)
        show("\n".join(well(job, again(job))))
        show(f"more: aiodist top {job.key}; aiodist stacks {job.key}; aiodist trace {job.key}")
