"""`aiodist explain`: what happened to a job, from the dump that its ranks have left."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from aiodist.cli.parser import Parser
from aiodist.cli.show import show


def main(argv: Sequence[str]) -> int:
    """Print what happened, in ten lines at most."""
    parser = Parser("aiodist explain", description=__doc__, example="aiodist explain logs/")
    parser.add_argument("folder", metavar="DIR", help="the folder of the dump, with rank0.json and others")
    args = parser.parse_args(list(argv))
    from aiodist.observe.clocks import place
    from aiodist.observe.dumps import read_job
    from aiodist.observe.explain import explain
    from aiodist.observe.verdict import judge

    job = place(read_job(args.folder))
    command = f"aiodist trace {shlex.quote(args.folder)} -o trace.json"
    show("\n".join(explain(job, judge(job), command)))
    return 0
