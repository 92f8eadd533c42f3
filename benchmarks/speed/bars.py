"""A goal of the project, as something that a run's figures meet or miss. Pure; the goals are in `goals`.

A goal over several sizes or operations is as good as its worst one. In brackets in the report: the wish,
which goes further than the goal. Where a goal has a floor, it is also met within that factor of the least
that the operation can take: what counts is the easier of the two, at each size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import NamedTuple

from aiodist.cli.bench.measures import show_size, show_value
from aiodist.cli.bench.table import table
from benchmarks.harness.results import Record, Results

ALL = (0, 1 << 62)


class Figure(NamedTuple):
    """What a goal looks at, at one place: a ratio or a figure, and the time over the floor's, if any."""

    value: float
    where: str
    above: float | None = None


class Floor(NamedTuple):
    """The line that is the floor, and by how much a time may be above it."""

    line: str
    factor: float = 1.3


@dataclass(frozen=True)
class Compared:
    """aiodist's time beside another's, in the same suite and at the same size.

    Args:
        title: for people.
        what: operations.
        theirs: whose line it is compared with.
        goal: the ratio that is needed.
        wish: the ratio that would be better still, if any.
        faster: whether the ratio is theirs / ours (at least); else ours / theirs (at most).
        ranks: world sizes; empty: any.
        sizes: smallest and largest size.
        ours: which of aiodist's lines.
        suite: where both were measured; '': the suite is named like the operation.
        dtypes: which dtypes; empty: whatever was measured.
        floor: a size meets the goal, too, where our time is within a factor of this.
        best: theirs is its best sample, not its median.
        mean: what counts is the geometric mean of all ratios, and no floor.
    """

    title: str
    what: tuple[str, ...]
    theirs: str
    goal: float
    wish: float | None = None
    faster: bool = True
    ranks: tuple[int, ...] = (2,)
    sizes: tuple[int, int] = ALL
    ours: str = "aiodist"
    suite: str = ""
    dtypes: tuple[str, ...] = ()
    floor: Floor | None = None
    best: bool = False
    mean: bool = False

    def figures(self, results: Results) -> Iterable[Figure]:
        """One for everything that both have measured, or for all of that."""
        each = list(self._each(results))
        if not self.mean or not each:
            return each
        return [Figure(geometric_mean([figure.value for figure in each]), "")]

    def _each(self, results: Results) -> Iterable[Figure]:
        named, several = len(self.what) > 1, len(self.ranks) != 1
        theirs = {_key(record): record for record in self._records(results, self.theirs)}
        floors = {} if self.floor is None else self._floors(results, self.floor.line)
        for mine in self._records(results, self.ours):
            other = theirs.get(_key(mine))
            if other is None:
                continue
            their_time = other.least if self.best else other.value
            ratio = their_time / mine.value if self.faster else mine.value / their_time
            least = floors.get(_key(mine))
            above = mine.value / least.value if least is not None and least.value else None
            yield Figure(ratio, _where(mine, named, several), above)

    def margin(self, figure: Figure) -> float:
        """By how much the goal is reached, at least 1 where it is: by the easier way."""
        reached = _margin(figure.value, self.goal, self.faster)
        if self.floor is None or figure.above is None:
            return reached
        return max(reached, self.floor.factor / figure.above)

    def _floors(self, results: Results, line: str) -> dict[tuple[object, ...], Record]:
        return {_key(record): record for record in self._records(results, line)}

    def _records(self, results: Results, peer: str) -> list[Record]:
        return [
            record
            for record in results.select(peer=peer)
            if record.what in self.what
            and record.suite == (self.suite or record.what)
            and (not self.ranks or record.ranks in self.ranks)
            and self.sizes[0] <= record.nbytes <= self.sizes[1]
            and (not self.dtypes or record.dtype in self.dtypes)
        ]

    def show(self, value: float) -> str:
        """A ratio."""
        return show_value(value, "ratio")


@dataclass(frozen=True)
class Limited:
    """A figure of aiodist's alone that must not be larger than something, or not smaller.

    Args:
        title: for people.
        suite: where it was measured.
        what: its names there.
        goal: what it may be at most.
        wish: what would be better still, if anything.
        unit: of the figure: 's', 'B', 'ratio', or '' for a number.
        faster: it must be at least `goal`.
        ranks: world sizes; empty: any.
    """

    title: str
    suite: str
    what: tuple[str, ...]
    goal: float
    wish: float | None = None
    unit: str = "s"
    faster: bool = False
    ranks: tuple[int, ...] = ()
    floor: Floor | None = None

    def figures(self, results: Results) -> Iterable[Figure]:
        """One for everything that was measured."""
        for record in results.select(suite=self.suite, peer="aiodist", unit=self.unit):
            if record.what in self.what and (not self.ranks or record.ranks in self.ranks):
                yield Figure(record.value, record.what if len(self.what) > 1 else "")

    def margin(self, figure: Figure) -> float:
        """By how much the goal is reached, at least 1 where it is."""
        return _margin(figure.value, self.goal, self.faster)

    def show(self, value: float) -> str:
        """A figure in its unit."""
        return show_value(value, self.unit)


Bar = Compared | Limited


@dataclass(frozen=True)
class Outcome:
    """The outcome of one goal. `figure` None: not measured in this run.

    Attributes:
        figure: the worst one.
        wished: whether the wish is met, too, at every place; None where there is none.
        several: there are others.
    """

    bar: Bar
    figure: Figure | None
    wished: bool | None = None
    several: bool = False

    @property
    def value(self) -> float | None:
        """The worst figure."""
        return None if self.figure is None else self.figure.value

    @property
    def where(self) -> str:
        """Which one that is, where there are several."""
        return self.figure.where if self.figure is not None and self.several else ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met."""
        return None if self.figure is None else self.bar.margin(self.figure) >= 1


def evaluate(results: Results, bars: Sequence[Bar]) -> list[Outcome]:
    """Each goal with the figure that is furthest off it."""
    outcomes = []
    for bar in bars:
        found = list(bar.figures(results))
        if not found:
            outcomes.append(Outcome(bar, None))
            continue
        wished = None
        if bar.wish is not None:
            wished = all(_margin(figure.value, bar.wish, bar.faster) >= 1 for figure in found)
        outcomes.append(Outcome(bar, min(found, key=bar.margin), wished, len(found) > 1))
    return outcomes


def bars_table(outcomes: Sequence[Outcome]) -> str:
    """The summary as Markdown."""
    rows = []
    for outcome in outcomes:
        verdict = {None: "", True: "yes", False: "no"}[outcome.met]
        if outcome.wished:
            verdict = "yes, and the wish"
        rows.append([outcome.bar.title, _needed(outcome.bar), _measured(outcome), outcome.where, verdict])
    return table(["goal", "needed [wished]", "measured", "at its worst", "met"], rows)


def _needed(bar: Bar) -> str:
    wish = f" [{bar.show(bar.wish)}]" if bar.wish is not None else ""
    floor = f", or ≤ {bar.floor.factor:g}× {bar.floor.line}" if bar.floor is not None else ""
    return f"{'≥' if bar.faster else '≤'} {bar.show(bar.goal)}{wish}{floor}"


def _measured(outcome: Outcome) -> str:
    if outcome.figure is None:
        return "not measured"
    value, _, above = outcome.figure
    return outcome.bar.show(value) + ("" if above is None else f", {show_value(above, 'ratio')}")


def _margin(value: float, goal: float, faster: bool) -> float:
    if faster:
        return value / goal
    return goal / value if value > 0 else float("inf")


def _key(record: Record) -> tuple[object, ...]:
    """What two records must have in common to be compared."""
    return record.what, record.ranks, record.nbytes, record.dtype


def _where(record: Record, named: bool, several: bool) -> str:
    parts = [
        record.what if named else "",
        show_size(record.nbytes) if record.nbytes else "",
        f"{record.ranks} ranks" if several else "",
    ]
    return " ".join(filter(None, parts))
