"""One rank as lines: what it does, its open operations, its stack and its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.base.sanitize import one_line
from aiodist.observe.figures import span
from aiodist.observe.host import host_name
from aiodist.observe.rates import named, placed
from aiodist.observe.view import Doing, RankView


def rank_lines(view: RankView) -> Iterator[str]:
    """The lines; those of what it does are there if it was asked."""

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
    if view.doing in (Doing.dead, Doing.left):
        return "it has ended"
    if view.doing is Doing.stopped:
        return "it is stopped by a signal or a debugger: `kill -CONT` lets it go on"
    if view.host != host_name():
        return "it is on another host: ask there"
    return "it has not answered"
