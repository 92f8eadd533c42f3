"""All that is shown of a job, as plain values: from two views of it. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aiodist.observe.outcome import Outcome
from aiodist.observe.rates import RankNews, RateRow, Totals, age, epoch, news, rows, totals
from aiodist.observe.verdict import Verdict, judge
from aiodist.observe.view import JobView

_NEWS = 20  # that are kept


@dataclass(frozen=True, slots=True)
class Summary:
    """A job, as it is and as it went between two views.

    Args:
        key: the job's.
        script: what its ranks run.
        size: ranks that it has; `rows` may be fewer: those that were seen.
        hosts: of those that were seen.
        epoch: the newest.
        age: seconds since the first rank began.
        rows: of the ranks, by rank.
        totals: of all rows.
        news: what has happened, the newest first.
        verdicts: why it stands still, or is slow; how it ended, as its launcher says.
        code: its exit code, if its launcher says that it has ended; else None.
    """

    key: str
    script: str
    size: int
    hosts: tuple[str, ...]
    epoch: int
    age: float
    rows: tuple[RateRow, ...]
    totals: Totals
    news: tuple[RankNews, ...]
    verdicts: tuple[Verdict, ...]
    code: int | None = None

    @property
    def trouble(self) -> str:
        """The worst, in one line: a verdict, else the newest failure or event; '' where there is none, or all
        was mended by a new epoch."""
        if self.verdicts:
            return self.verdicts[0].title
        present = [one for one in self.news if not one.past]
        worst = next((one for one in present if one.failure), next(iter(present), None))
        return f"rank {worst.rank}: {worst.text}" if worst is not None else ""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def summary(
    before: JobView | None,
    now: JobView,
    verdicts: tuple[Verdict, ...] | None = None,
    outcome: Outcome | None = None,
) -> Summary:
    """What there is to show.

    Args:
        before: the same job, as it was seen some time before; None: it was not.
        verdicts: on the job, for who has judged it already; None: it is judged here.
        outcome: its launcher's word on its end, which is then the verdict; None: there is none.
    """
    table = rows(before, now)
    if outcome is not None:
        verdicts = (outcome.verdict,)
    return Summary(
        *(now.key, now.name, now.size, now.hosts, epoch(now), age(now), table, totals(table)),
        *(tuple(news(now)[:_NEWS]), judge(now) if verdicts is None else verdicts),
        code=None if outcome is None else outcome.code,
    )
