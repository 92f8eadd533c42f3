"""What `aiodist top` shows: a summary of a job, for a terminal of some size. Needs rich.

What came from ranks is made fit for a terminal, and never read as rich's markup.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from aiodist.base.sanitize import one_line
from aiodist.observe.figures import rate, share, size, span
from aiodist.observe.rates import RateRow, Totals, totals, worst_first
from aiodist.observe.summary import Summary

_FEW = 30  # columns for the operation: with fewer other columns are left out
_VERDICT_LINES = 6  # of one verdict
_STYLES = {"running": "green", "waiting": "yellow", "left": "dim"}
_BAD = "bold red"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column.

    Args:
        title: its head.
        width: characters.
        of: a rank's value.
        all: the value of several ranks.
        worth: those with the least are left out first where there is no room.
    """

    title: str
    width: int
    of: Callable[[RateRow], str]
    all: Callable[[Totals], str]
    worth: int


def _nothing(_: Totals) -> str:
    return ""


_NUMBERS = (
    _Column("ops/s", 6, lambda row: rate(row.ops), lambda all: rate(all.ops), 9),
    _Column("bytes/s", 7, lambda row: size(row.nbytes), lambda all: size(all.nbytes), 8),
    _Column("wait", 5, lambda row: share(row.waiting), lambda all: share(all.waiting), 7),
    _Column("lag", 6, lambda row: span(row.late), lambda all: span(all.late), 4),
    _Column("memory", 6, lambda row: size(row.memory), lambda all: size(all.memory), 3),
    _Column("cpu", 5, lambda row: share(row.cpu), lambda all: share(all.cpu), 6),
    _Column("epoch", 5, lambda row: str(row.epoch), _nothing, 1),
)


_CALLS = _Column(
    "asks/serves",
    11,
    lambda row: f"{row.asked}/{row.served}",
    lambda all: f"{all.asked}/{all.served}",
    5,
)
"""Calls without an answer; shown where there are any."""


def screen(job: Summary, width: int, height: int | None = None, note: str = "") -> Group:
    """A job, in lines of a terminal.

    Args:
        width: columns.
        height: lines; None: as many as there are.
        note: a last line.
    """
    head = _head(job)
    tail = _tail(job)
    if note:
        tail.append(_cut(Text(one_line(note), style="dim")))
    shown: Sequence[RateRow] = job.rows
    rest: Sequence[RateRow] = ()
    if height is not None:
        room = max(1, height - len(head) - len(tail) - 2)  # the columns' heads, and the totals
        if len(job.rows) > room:
            ordered = worst_first(job.rows)
            shown, rest = ordered[: max(1, room - 1)], ordered[max(1, room - 1) :]
    return Group(*head, _table(job, shown, rest, width), *tail)


def plain(job: Summary, width: int) -> str:
    """The screen as text without colours, with all ranks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, emoji=False)
    with console.capture() as taken:
        console.print(screen(job, width))
    return "\n".join(line.rstrip() for line in taken.get().splitlines())


def _head(job: Summary) -> list[Text]:
    seen = f"{len(job.rows)} of {job.size} ranks"
    hosts = f"{len(job.hosts)} hosts" if len(job.hosts) > 1 else f"host {one_line(job.hosts[0])}"
    first = Text.assemble((one_line(job.script), "bold"), f"  job {one_line(job.key)}  {seen}  {hosts}")
    first.append(f"  epoch {job.epoch}  since {span(job.age)}")
    states = Text()
    for doing, count in job.totals.doing.items():
        states.append(f"{count} {doing}  ", style=_STYLES.get(doing, _BAD))
    states.append(f"{job.totals.issued} operations, {job.totals.failed} failed")
    if job.totals.asked or job.totals.served:
        states.append(f"  {job.totals.asked} calls without an answer")
    return [_cut(first), _cut(states)]


def _tail(job: Summary) -> list[Text]:
    lines = []
    for verdict in job.verdicts:
        lines.append(_cut(Text(one_line(verdict.title), style=_BAD)))
        lines += [_cut(Text(f"  {one_line(line)}")) for line in verdict.lines[:_VERDICT_LINES]]
    if job.news:
        last = job.news[0]
        style = "red" if last.failure else ""
        text = f"{span(last.ago)} ago, rank {last.rank}: {one_line(last.text)}"
        lines.append(_cut(Text(text, style=style)))
    return lines


def _table(job: Summary, shown: Iterable[RateRow], rest: Sequence[RateRow], width: int) -> Table:
    one_host = len(job.hosts) == 1

    def process(row: RateRow) -> str:
        return str(row.pid) if one_host else f"{one_line(row.host)}:{row.pid}"

    shown = list(shown)
    ranks = max(len("rank"), *(len(str(row.rank)) for row in shown))
    processes = max(len("process"), *(len(process(row)) for row in shown))
    states = max(len("state"), *(len(_state(row)) for row in shown))
    calls = (_CALLS,) if job.totals.asked or job.totals.served else ()
    columns = _that_fit((*_NUMBERS, *calls), width - ranks - processes - states - 3)
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("rank", width=ranks, justify="right")
    table.add_column("process", width=processes, no_wrap=True)
    table.add_column("state", width=states, no_wrap=True)
    table.add_column("operation", ratio=1, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column.title, width=column.width, justify="right", no_wrap=True)
    for row in shown:
        state = Text(_state(row), style=_STYLES.get(row.doing, _BAD))
        numbers = [column.of(row) for column in columns]
        table.add_row(str(row.rank), process(row), state, Text(_operation(row)), *numbers)
    for title, several in ((f"{len(rest)} more", rest), ("all", job.rows)):
        if several:
            table.add_row(*_together(title, totals(several), columns), style="bold" if title == "all" else "")
    return table


def _together(title: str, all: Totals, columns: Iterable[_Column]) -> list[str | Text]:
    states = ", ".join(f"{count} {doing}" for doing, count in all.doing.items())
    return ["", "", title, Text(states), *(column.all(all) for column in columns)]


def _that_fit(all: Iterable[_Column], room: int) -> list[_Column]:
    """The columns that leave room for the operation."""
    columns = list(all)
    while columns and room - sum(column.width + 1 for column in columns) < _FEW:
        columns.remove(min(columns, key=lambda column: column.worth))
    return columns


def _state(row: RateRow) -> str:
    return f"{row.doing} {span(row.since)}" if row.since else row.doing


def _operation(row: RateRow) -> str:
    """What it waits in, or did last."""
    if not row.what:
        return ""
    of = "" if row.group in ("", "world") else f" of {one_line(row.group)}"
    line = f" {one_line(row.line)}" if row.line else ""
    text = f"{one_line(row.what)}{of}{line}"
    return text if row.pending else f"({text})"


def _cut(line: Text) -> Text:
    """The line, which takes one line of the terminal however long it is."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
