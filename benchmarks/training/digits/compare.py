"""Trainings with deaths beside those without: whether the result is what the algorithm promises. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.training.digits.algorithms import ALGORITHMS
from benchmarks.training.digits.training import Outcome

WITHIN = 2.0  # standard deviations


@dataclass(frozen=True)
class Comparison:
    """The trainings of one algorithm.

    Args:
        name: of the algorithm.
        without: without deaths, one for each seed; two at least.
        deaths: with deaths, each with the seed of one without.
    """

    name: str
    without: Sequence[Outcome]
    deaths: Sequence[Outcome]

    @property
    def mean(self) -> float:
        """The loss without deaths, over all seeds."""
        return statistics.mean(one.held_out for one in self.without)

    @property
    def deviation(self) -> float:
        """The standard deviation of the loss without deaths, from seed to seed."""
        return statistics.stdev(one.held_out for one in self.without)

    @property
    def apart(self) -> float:
        """The mean loss with deaths, in standard deviations from that without: positive is worse."""
        return (statistics.mean(one.held_out for one in self.deaths) - self.mean) / self.deviation

    @property
    def kills(self) -> int:
        """How many ranks were killed."""
        return sum(one.kills for one in self.deaths)

    @property
    def equal(self) -> int:
        """How many trainings with deaths have the bits of the one without."""
        bits = {one.seed: one.weights for one in self.without}
        return sum(one.weights == bits[one.seed] for one in self.deaths)

    @property
    def kept(self) -> bool:
        """Whether the promise is kept: equal bits where the algorithm promises them, else `WITHIN`."""
        if ALGORITHMS[self.name].equal:
            return self.equal == len(self.deaths)
        return abs(self.apart) <= WITHIN

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Comparison:
        """What `as_json` gave."""
        without, deaths = ([Outcome(**one) for one in found[kind]] for kind in ("without", "deaths"))
        return cls(found["name"], without, deaths)

    def as_json(self) -> dict[str, Any]:
        """All, for `json.dump`."""
        figures = ("mean", "deviation", "apart", "kills", "equal", "kept")
        return asdict(self) | {name: getattr(self, name) for name in figures}


def table(compared: Sequence[Comparison]) -> str:
    """The comparisons as Markdown."""
    lines = [
        "| | Ranks killed | Promise | Loss without deaths | Loss with deaths | Difference "
        "| Digits recognised | Kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        algorithm, times = ALGORITHMS[one.name], len(one.deaths)
        with_deaths = [outcome.held_out for outcome in one.deaths]
        lines.append(
            f"| `{algorithm.title}` | {one.kills} in {times} trainings "
            f"| {'the same bits' if algorithm.equal else f'within {WITHIN:g} σ'} "
            f"| {one.mean:.4f} ± {one.deviation:.4f} "
            f"| {statistics.mean(with_deaths):.4f} ({min(with_deaths):.4f} to {max(with_deaths):.4f}) "
            f"| {f'{one.equal} of {times} have the same bits' if algorithm.equal else f'{one.apart:+.2f} σ'} "
            f"| {_accuracy(one.without)} → {_accuracy(one.deaths)} "
            f"| {'yes' if one.kept else '**no**'} |"
        )
    return "\n".join(lines)


def _accuracy(outcomes: Sequence[Outcome]) -> str:
    return f"{statistics.mean(one.accuracy for one in outcomes) * 100:.1f} %"
