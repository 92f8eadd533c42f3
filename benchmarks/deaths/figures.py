"""The figures: one line of the table for each variant of a row, and how it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.faults import Round, Said


@dataclass
class Figures:
    """One line.

    Attributes:
        row: number of the test.
        what: which variant, in a few words.
        ranks: how many there were, in words.
        repeats: how often it was done.
        samples: milliseconds from the fault to the error, for each survivor and repeat, where that counts.
        bar: what their 99th percentile shall not exceed, in milliseconds; None: nothing is asked.
        hangs: survivors that gave no answer in time.
        wrong: results that were wrong and reported as right.
        checked: results that were checked.
        problems: whatever else was not as it shall be, in words.
        notes: what else there is to say, in words.
    """

    row: int
    what: str
    ranks: str
    repeats: int = 0
    samples: list[float] = field(default_factory=list)
    bar: float | None = None
    hangs: int = 0
    wrong: int = 0
    checked: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all was as it shall be, figures apart."""
        return self.repeats > 0 and not (self.hangs or self.wrong or self.problems)

    @property
    def in_time(self) -> bool:
        """Whether the bar is kept."""
        return self.bar is None or not self.samples or percentile(self.samples, 99) <= self.bar

    def problem(self, text: str) -> None:
        """Note something that was not as it shall be."""
        self.problems.append(text)

    def take(self, outcomes: Mapping[int, Said | None], round: Round, times: int = 1) -> dict[int, Any]:
        """Count what came of a round; by rank, what those returned that ended in order.

        Ranks that gave no answer hang. It is a problem if others did not end in order.

        Args:
            times: how often something was done in it.
        """
        self.repeats += times
        found = {}
        for rank, outcome in outcomes.items():
            if outcome is None:
                self.hangs += 1
            elif outcome.error or outcome.what != "ends":
                trace = outcome.facts.get("trace", "")
                self.problem(f"rank {rank}: {outcome.what} {outcome.error}\n{trace}")
            else:
                found[rank] = outcome.value
                self.wrong += outcome.value.get("wrong", 0)
                self.checked += outcome.value.get("wrong", 0) + outcome.value.get("right", 0)
        if None in outcomes.values():
            self.problem(round.report())
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, samples included, for `json.dump`."""
        shown = {name: percentile(self.samples, share) for name, share in SHARES} if self.samples else {}
        return asdict(self) | {"good": self.good, "in_time": self.in_time} | shown


SHARES = (("p50", 50.0), ("p99", 99.0), ("max", 100.0))


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that so many per cent of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def milliseconds(value: float) -> str:
    """Three digits, as far as they say something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
