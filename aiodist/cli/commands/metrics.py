"""`aiodist metrics [JOB]`: the figures of a job as metrics, once as text, or until the job has ended.

Without an option the command prints what a scrape of Prometheus would get. --textfile writes the same into a
file, again and again, for node_exporter's textfile collector; --otlp pushes to a collector of OpenTelemetry.
The command asks the ranks nothing.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from asyncio import Future
from collections.abc import Sequence
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiodist.base.environment.files import write_file
from aiodist.base.errors import UsageError
from aiodist.cli.follow import LEAVING, views
from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job, the_job
from aiodist.cli.show import show
from aiodist.net.stop_signals import stop_on

if TYPE_CHECKING:
    from aiodist.observe import JobView
    from aiodist.observe.metrics.families import MetricFamily
    from aiodist.observe.metrics.otel import OtlpPush
    from aiodist.observe.metrics.tally import Tally

_SHORTEST = 0.1  # seconds between two views
_END = ".prom"  # node_exporter reads no other files


def main(argv: Sequence[str]) -> int:
    """Tell the metrics of a job, once or until it has ended; 143 after SIGTERM."""
    parser = Parser("aiodist metrics", description=__doc__)
    add_job(parser)
    parser.add_argument(
        "--textfile", metavar="FILE.prom", help="write into this file, and remove it at the end"
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        nargs="?",
        const="",
        help="push by OTLP over HTTP (OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318)",
    )
    parser.add_argument(
        "--every", metavar="SECONDS", type=float, default=10.0, help="seconds between two updates (10)"
    )
    args = parser.parse_args(list(argv))
    if not _SHORTEST <= args.every < float("inf"):
        raise UsageError(f"--every={args.every:g} is not between {_SHORTEST} and infinity")
    if args.textfile is not None and not args.textfile.endswith(_END):
        raise UsageError(
            f"--textfile={args.textfile} does not end in {_END}", hint="node_exporter reads no other files"
        )
    from aiodist.observe.metrics import otel, prometheus

    once = args.textfile is None and args.otlp is None
    if once or args.textfile is not None:
        prometheus.need()
    if args.otlp is not None:
        otel.need()
    if args.otlp:
        otel.url(args.otlp)
    with suppress(KeyboardInterrupt):
        return _once(args.job) if once else asyncio.run(_tell_on(args))
    return 0


def _once(wanted: str | None) -> int:
    from aiodist.observe.metrics.tally import Tally

    job = the_job(wanted)
    show(_text(job, _families(job, Tally())).rstrip())
    return 0


async def _tell_on(args: Namespace) -> int:
    """Tell the job on until it has gone, or somebody leaves → the exit code."""
    from aiodist.observe.metrics.otel import OtlpPush
    from aiodist.observe.metrics.tally import Tally

    tally = Tally()
    pusher: _Pusher | None = None
    shown = ""
    file = Path(args.textfile) if args.textfile is not None else None
    left = stop_on(LEAVING)
    with ExitStack() as ends:
        if file is not None:
            ends.callback(file.unlink, missing_ok=True)
        async with aclosing(views(args.job, args.every, left)) as found:
            async for job, note in found:
                if note != shown:
                    shown = note
                    print(f"aiodist metrics: {note}", file=sys.stderr, flush=True)
                if job is None:
                    continue
                families = await asyncio.to_thread(_families, job, tally)
                if file is not None:
                    # By way of a hidden name: not one that node_exporter reads.
                    write_file(file, _text(job, families))
                if args.otlp is not None:
                    if pusher is None:
                        push = OtlpPush(job, args.otlp or None)
                        ends.callback(push.close)
                        pusher = _Pusher(push, args.otlp or "the collector")
                    await pusher.send(families, left)
        return left.result() if left.done() else 0


class _Pusher:
    """Pushes a job's metrics, and says once when that begins to fail, and once when it goes again.

    Args:
        push: does it.
        where: the collector, for people.
    """

    def __init__(self, push: OtlpPush, where: str) -> None:
        self._push = push
        self._where = where
        self._trouble = ""

    async def send(self, families: Sequence[MetricFamily], left: Future[int]) -> None:
        """Push; who leaves meanwhile waits for no collector."""
        pushing = asyncio.create_task(asyncio.to_thread(self._push.push, families))
        waited: list[Future[Any]] = [pushing, left]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not pushing.done():
            await asyncio.to_thread(self._push.close)
        trouble = await pushing
        if left.done() or bool(trouble) == bool(self._trouble):
            return
        self._trouble = trouble
        text = f"cannot push to {self._where}: {trouble}" if trouble else f"pushes to {self._where} again"
        print(f"aiodist metrics: {text}", file=sys.stderr, flush=True)


def _families(job: JobView, tally: Tally) -> tuple[MetricFamily, ...]:
    from aiodist.observe.metrics.families import families
    from aiodist.observe.summary import summary

    return families(summary(None, job), job, tally)


def _text(job: JobView, families: Sequence[MetricFamily]) -> str:
    from aiodist.observe.metrics.prometheus import render

    return render(job.key, families)[0].decode()
