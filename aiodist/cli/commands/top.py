"""`aiodist top [JOB]`: what each rank of a job does, refreshed once a second; q or Ctrl-C leaves.

The operation is the one for which the rank waits; in brackets, it is the last one. If there are more ranks
than lines, ranks in trouble come first. In a pipe, or with --once, it prints the table
once and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from aiodist.base.errors import UsageError
from aiodist.cli.follow import LEAVING, views
from aiodist.cli.parser import Parser
from aiodist.cli.seen import add_job
from aiodist.cli.show import show
from aiodist.net.stop_signals import stop_on
from aiodist.net.tasks import settle

if TYPE_CHECKING:
    from aiodist.observe import JobView
    from aiodist.observe.source import JobSource
    from aiodist.observe.summary import Summary

_SHORTEST = 0.1  # seconds between two views
_WIDTH = 120  # columns of what goes into a pipe
_NOBODY = "no job of this user runs on this host: waiting for one (q leaves)"
_LEAVE = (b"q", b"Q", b"")


def main(argv: Sequence[str]) -> int:
    """Show a job until it has ended, or somebody leaves; 143 after SIGTERM."""
    parser = Parser("aiodist top", description=__doc__)
    add_job(parser, more="waits for one if there is none")
    parser.add_argument(
        "--every", metavar="SECONDS", type=float, default=1.0, help="seconds between two updates (1)"
    )
    parser.add_argument("--once", action="store_true", help="print the table once, as text")
    parser.add_argument("--json", action="store_true", help="print it once, for machines")
    args = parser.parse_args(list(argv))
    if not _SHORTEST <= args.every < float("inf"):
        raise UsageError(f"--every={args.every:g} is not between {_SHORTEST} and infinity")
    if not args.json:
        _need_rich()
    with suppress(KeyboardInterrupt):
        return asyncio.run(_show(args))
    return 0


def _need_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError:
        raise UsageError("top needs rich", hint="pip install 'aiodist[observe]'") from None


def _is_live(args: Namespace) -> bool:
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
    return not (args.once or args.json or dumb) and sys.stdout.isatty()


async def _show(args: Namespace) -> int:
    from aiodist.observe.choice import pick
    from aiodist.observe.host import check_records, read_jobs
    from aiodist.observe.source import JobSource

    check_records()
    if _is_live(args):
        return await _live(args.job, args.every)
    job = pick(await asyncio.to_thread(read_jobs), args.job)
    source = JobSource(job, os.environ)
    try:
        await _once(job, source, args)
        return 0
    finally:
        await source.aclose()


async def _once(job: JobView, source: JobSource, args: Namespace) -> None:
    """Print what came between two views."""
    from aiodist.observe.summary import summary

    before = next((one for one in await source.read() if one.key == job.key), job)
    await asyncio.sleep(args.every)
    now = next((one for one in await source.read() if one.key == job.key), None)
    found = summary(before, now) if now is not None else summary(None, before)
    if source.note:
        print(source.note, file=sys.stderr)
    if args.json:
        show(json.dumps(found.to_json(), indent=2))
    else:
        from aiodist.observe.screen import plain

        width = os.environ.get("COLUMNS", "")
        show(plain(found, int(width) if width.isascii() and width.isdigit() else _width()))


def _width() -> int:
    """Columns of the terminal; of a pipe, some more than most terminals have."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _WIDTH
    except OSError:
        return _WIDTH


async def _live(wanted: str | None, every: float) -> int:
    """Show the job until it has gone, or somebody leaves → the exit code."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from aiodist.cli.keyboard import keys
    from aiodist.observe.screen import screen
    from aiodist.observe.summary import summary

    console = Console(emoji=False, highlight=False, markup=False)
    before: JobView | None = None
    last: Summary | None = None
    left = stop_on(LEAVING)
    with (
        keys(lambda pressed: settle(left, 0) if pressed in _LEAVE else None),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        async with aclosing(views(wanted, every, left)) as found:
            async for now, note in found:
                if now is not None:
                    last, before = summary(before, now), now
                shown = Text(_NOBODY) if last is None else screen(last, console.width, console.height, note)
                live.update(shown, refresh=True)
    if left.done():
        return left.result()
    if last is not None:
        console.print(screen(last, console.width))
        show("the job has ended")
    return 0
