"""What stands in the labels of metrics, in bounded number: each value is a series, for good. Pure."""

from __future__ import annotations

from aiodist.base.sanitize import one_line
from aiodist.observe.view import JobView

MOST_RANKS = 1024
"""Ranks of a job that are told one by one. Those of a larger one are told together, by host: `rank` is ''."""

MOST_GROUPS = 50
"""Names of groups that are told apart: those that were seen first."""

OTHERS = "(others)"
"""In place of the names of all further groups."""

_LONGEST = 100  # characters of a value


class Labels:
    """Makes the values of labels. It remembers which groups' names it has let in."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        self._shown: set[str] = set()

    def group(self, name: str | None) -> str:
        """A group's; None: it could not be written down."""
        if name is None:
            return OTHERS
        if (known := self._groups.get(name)) is not None:
            return known
        shown = one_line(name, _LONGEST)
        if shown not in self._shown and len(self._shown) >= MOST_GROUPS:
            return OTHERS
        self._shown.add(shown)
        if len(self._groups) < 10 * MOST_GROUPS:  # several names may be shown alike
            self._groups[name] = shown
        return shown


def ranks(job: JobView) -> dict[int, tuple[str, str]]:
    """The labels `host` and `rank` of each rank that is seen."""
    large = job.size > MOST_RANKS
    return {view.rank: (text(view.host), "" if large else str(view.rank)) for view in job.ranks}


def text(value: str) -> str:
    """A foreign text."""
    return one_line(value, _LONGEST)
