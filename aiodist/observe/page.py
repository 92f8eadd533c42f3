"""What a page shows of a job, as JSON values: all of it once, then what has changed. Pure.

A row is a list of cells, one for each of `COLUMNS`. Numbers are rounded to what is shown, so that a cell
which looks the same is not sent again. Whatever a rank has told is one line without control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import isfinite
from typing import Any

from aiodist.base.sanitize import indented, one_line
from aiodist.observe.history import HistoryEntry
from aiodist.observe.rates import RankNews, RateRow
from aiodist.observe.summary import Summary
from aiodist.observe.verdict import Verdict

COLUMNS = tuple(field.name for field in fields(RateRow))
"""The cells of a row, in their order; the first is the rank."""

_LONGEST = 200  # characters of a cell
_LINE = 300  # of a line of a verdict
_TEXTS = frozenset(("host", "what", "group", "line"))
_SECONDS = frozenset(("since", "late"))
_DIGITS = frozenset(("ops", "nbytes", "waiting", "cpu", "memory"))

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page at one moment.

    Args:
        parts: JSON values by name: 'job', 'totals', 'verdicts', 'news', 'history', …
        rows: the cells of each rank's row, by rank.
    """

    parts: Mapping[str, Any]
    rows: Mapping[int, tuple[Cell, ...]]


def page(summary: Summary, history: Iterable[HistoryEntry], **more: Any) -> Page:
    """What a page shows.

    Args:
        summary: of the job.
        history: of its membership, the oldest entry first.
        more: parts besides.
    """
    job = {
        "key": summary.key,
        "script": text(summary.script),
        "size": summary.size,
        "hosts": [text(host) for host in summary.hosts],
        "epoch": summary.epoch,
        "age": _round(summary.age),
    }
    totals = {name: _cell(name, value) for name, value in asdict(summary.totals).items()}
    parts = {
        "job": job,
        "totals": totals,
        "verdicts": [_verdict(one) for one in summary.verdicts],
        "news": [_news(one) for one in summary.news],
        "history": [_entry(one) for one in history],
        **more,
    }
    return Page(parts, {row.rank: _row(row) for row in summary.rows})


def whole(now: Page) -> dict[str, Any]:
    """All of it: {'columns', 'rows', part: its value, …}."""
    return {"columns": COLUMNS, "rows": list(now.rows.values()), **now.parts}


def change(before: Page, now: Page) -> dict[str, Any]:
    """What has changed: parts, by name; 'cells', [rank, column, value, …] for each row; 'rows' that are new;
    'gone', ranks.

    What has not changed is left out. `apply` of it to what was there gives what is there.
    """
    found: dict[str, Any] = {
        name: value
        for name, value in now.parts.items()
        if name not in before.parts or before.parts[name] != value
    }
    cells: list[list[Cell]] = []
    fresh: list[tuple[Cell, ...]] = []
    for rank, row in now.rows.items():
        old = before.rows.get(rank)
        if old is None:
            fresh.append(row)
        elif old != row:
            cells.append(_differing(rank, old, row))
    gone = [rank for rank in before.rows if rank not in now.rows]
    return found | {
        name: value for name, value in (("cells", cells), ("rows", fresh), ("gone", gone)) if value
    }


@lru_cache(8192)  # most ranks say the same
def text(words: str) -> str:
    """What a rank told, as a short line."""
    return one_line(words, _LONGEST)


def _differing(rank: int, old: tuple[Cell, ...], new: tuple[Cell, ...]) -> list[Cell]:
    cells: list[Cell] = [rank]
    for column, (before, now) in enumerate(zip(old, new, strict=True)):
        if before != now:
            cells += (column, now)
    return cells


def _row(row: RateRow) -> tuple[Cell, ...]:
    return tuple([_cell(name, getattr(row, name)) for name in COLUMNS])


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _TEXTS:
        return text(value)
    if name in _SECONDS:
        return round(value, 3 if value < 1 else 1)
    if name in _DIGITS:
        return float(f"{value:.3g}") if value else 0
    return value


def _round(number: float) -> int:
    """A whole number; 0 for what is none: a rank's memory may hold anything."""
    return round(number) if isfinite(number) else 0


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "ranks": list(verdict.ranks[:_LONGEST]),
        "title": one_line(verdict.title, _LINE),
        "lines": [indented(line, _LINE) for line in verdict.lines],
    }


def _news(news: RankNews) -> dict[str, Any]:
    ago = _round(news.ago) if news.ago < 60 else _round(news.ago / 60) * 60
    event = {"rank": news.rank, "ago": ago, "text": one_line(news.text, _LINE), "failure": news.failure}
    return event | {"past": news.past}


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    return {"at": _round(10 * entry.at) / 10, "kind": entry.kind, "text": one_line(entry.text, _LINE)}
