"""`aiodist trace`: what the ranks of a job did last, as a file that ui.perfetto.dev opens."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiodist.base.environment.files import Folder, write_file
from aiodist.base.errors import AiodistError, UsageError
from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job, the_job
from aiodist.cli.show import show

if TYPE_CHECKING:
    from aiodist.observe import JobView

_ERROR = "clock error in seconds, at most"


def main(argv: Sequence[str]) -> int:
    """Write the trace of a job that runs on this host, or of a dump."""
    parser = Parser("aiodist trace", description=__doc__)
    add_job(parser, dumps=True)
    parser.add_argument("-o", "--output", metavar="FILE", default="trace.json", help="(trace.json)")
    parser.add_argument(
        "--format",
        choices=("json", "torch"),
        default="json",
        help="json: for ui.perfetto.dev; torch: a new folder, for torch's flight recorder's analyzer (json)",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", default=math.inf, help="the last N seconds only"
    )
    args = parser.parse_args(list(argv))
    if not args.seconds > 0:
        raise UsageError(f"--seconds={args.seconds} is not a time", hint="Write for example --seconds 10")
    from aiodist.observe.clocks import place
    from aiodist.observe.trace import trace

    job = place(_find(args.job))
    if args.format == "torch":
        write_flight(job, Path(args.output))
        return 0
    made = trace(job, args.seconds)
    write_file(args.output, json.dumps(made, allow_nan=False))
    show(f"{args.output}: {_summary(made)}; open it at https://ui.perfetto.dev")
    return 0


def write_flight(job: JobView, folder: Path) -> None:
    """Write what all ranks still know into a new folder, as torch's analyser reads it."""
    import pickle

    from aiodist.observe.flight import flight

    try:
        whole = folder.absolute()
        with Folder.named(whole.parent) as above, above.folder(whole.name, make=True) as opened:
            if opened.names():
                raise UsageError(f"there is something in {str(folder)!r}", hint="Name a new folder with -o")
            dumps = flight(job)
            for rank, dump in dumps.items():
                opened.replace(f"rank_{rank}", pickle.dumps(dump))
    except OSError as error:
        raise AiodistError(f"cannot write into {str(folder)!r}: {error.strerror}") from None
    count = sum(len(dump["entries"]) for dump in dumps.values())
    command = f"python -m torch.distributed.flight_recorder.fr_trace {shlex.quote(str(folder))}"
    show(f"{folder}: {count} collectives of {len(dumps)} ranks, that all of them still know; run  {command}")


def _find(name: str | None) -> JobView:
    """The job that is meant.

    Raises:
        UsageError: there is none, or several could be.
    """
    from aiodist.observe.dumps import read_job
    from aiodist.observe.exchange import MOST

    if name is not None and Path(name).is_dir():
        return read_job(name)
    return the_job(name, most=MOST)


def _summary(made: dict[str, Any]) -> str:
    events, facts = made["traceEvents"], made["otherData"]
    count = sum(event["ph"] == "X" and event["cat"] != "phase" for event in events)
    error = facts[_ERROR]
    bound = "with clocks that nobody has compared" if error is None else f"times within {error * 1e6:.0f} µs"
    counts = ((count, "operation"), (len(facts["clocks"]), "rank"), (facts["arrows"], "arrow"))
    operations, ranks, arrows = (f"{number} {what}{'s' * (number != 1)}" for number, what in counts)
    return f"{operations} of {ranks}, {arrows}, {bound}"
