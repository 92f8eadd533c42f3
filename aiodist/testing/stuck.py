"""What the ranks of a test do that does not end: operations, tasks and lines; and who is the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiodist.base.errors import name_ranks
from aiodist.observe.ask import ask
from aiodist.observe.host import read_ranks
from aiodist.observe.rank_lines import rank_lines
from aiodist.observe.verdict import judge
from aiodist.observe.view import Doing, RankView, jobs

_SURE = 0.5  # seconds for which an operation is pending: it is not just on its way


def seen(pids: Mapping[int, int]) -> list[RankView]:
    """The ranks, asked what they do.

    Args:
        pids: the ranks that have not ended, by process.
    """
    return ask([view for view in read_ranks() if view.recording.pid in pids])


def why(views: Sequence[RankView]) -> list[str]:
    """Who is the cause, as far as that is seen, and what to do; else which ranks have not ended."""
    verdicts = judge(jobs(views)[0], _SURE) if views else ()
    if verdicts:
        return [verdicts[0].title, *(line for line in verdicts[0].lines if line.startswith("→"))]
    busy = [view.rank for view in views if view.doing is not Doing.left]
    return [f"{name_ranks(busy)} had not ended"] if busy else []


def described(views: Sequence[RankView]) -> list[str]:
    """What each does, as lines."""
    lines: list[str] = []
    for view in sorted(views, key=lambda view: view.rank):
        lines += ["", *rank_lines(_without_server(view))]
    return lines[1:]


def _without_server(view: RankView) -> RankView:
    """A rank's stacks without the line of the server that it was forked from."""
    if view.stacks is None:
        return view
    thread = tuple(line for line in view.stacks.thread if not line.startswith("<string>:"))
    return replace(view, stacks=replace(view.stacks, thread=thread))
