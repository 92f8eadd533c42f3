"""How the ranks of a test have ended, and what the test's outcome is by that."""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.base.environment.process import signal_name
from aiodist.testing.report import TAIL, Report, same_lines


@dataclass(slots=True)
class RankOutcome:
    """The end of one rank: its exit code (negative: the signal), output, and place in the order of failing.

    A rank that raised failed when it raised, whenever its process ended; one that died without an
    exception came before those, which most likely raised because of it.
    """

    rank: int
    code: int
    output: str
    order: int
    report: Report | None = None


class RanksFailed(AssertionError):
    """The error that some ranks did not end as expected.

    Args:
        title: what happened first, in one line.
        cause: the traceback, or whatever tells it.
        rest: what the other ranks say, as lines.
        shown: the cause as pytest shows it, if it does.
        place: the line of the test, 'test_sum.py:12'.
    """

    def __init__(
        self, title: str, cause: str = "", rest: Sequence[str] = (), *, shown: Any = None, place: str = ""
    ) -> None:
        super().__init__("\n".join(filter(None, [title, cause, *rest])))
        self.title = title
        self.cause = cause
        self.rest = tuple(rest)
        self.shown = shown
        self.place = place


def put_in_order(outcomes: Sequence[RankOutcome]) -> None:
    """Sort out who failed first: those who tell a cause before those whom it reached, then by time."""

    def key(outcome: RankOutcome) -> tuple[bool, int, int]:
        report = outcome.report
        if report is None or report.kind == "passed":
            return False, 0, outcome.order
        return report.follows, report.when, outcome.order

    for place, outcome in enumerate(sorted(outcomes, key=key), 1):
        outcome.order = place


def check(outcomes: Sequence[RankOutcome], exits: Mapping[int, int], *, reported: bool = False) -> None:
    """Raise `RanksFailed` unless every rank ended as expected.

    Args:
        outcomes: of all ranks.
        exits: the exit codes that are expected, by rank; 0 of all others.
        reported: the ranks report: who does not, has not reached its function's end.

    Raises:
        RanksFailed: some did not.
        unittest.SkipTest: a rank has skipped the test, and none has failed; or pytest's own exception for
            that, where it was raised there. Likewise pytest.xfail.
    """
    skips = [one for one in outcomes if one.report is not None and one.report.kind in ("skipped", "xfailed")]
    wrong = [
        one
        for one in outcomes
        if one not in skips
        and (one.code != exits.get(one.rank, 0) or (reported and one.rank not in exits and not _passed(one)))
    ]
    wrong.sort(key=lambda outcome: outcome.order)
    if skips and all(one.report is not None and one.report.follows for one in wrong):
        _skip(min(skips, key=lambda outcome: outcome.order), len(skips) == len(outcomes))
    if wrong:
        first = min((one for one in wrong if _same(one, wrong[0])), key=lambda outcome: outcome.rank)
        others = [one for one in wrong if one is not first]
        report = first.report
        failed = report is not None and report.kind == "failed"
        size = len(outcomes)
        who = f"rank {first.rank} of {size}"
        what = f"{who}: {report.line}" if report and failed else f"{who} {_ended(first, reported)}"
        if first.rank in exits:
            what += f"; exits= expects that it {_left(exits[first.rank])}"
        cause = report.text if report and failed else _tail(first)
        rest = same_lines([(one.rank, _described(one, reported)) for one in others])
        if report and report.follows:  # no rank tells a cause: one that left early may be it
            rest += same_lines([(one.rank, "its function had returned") for one in outcomes if _passed(one)])
        raise RanksFailed(
            what,
            cause,
            rest,
            shown=report.shown if report else None,
            place=report.place if report else "",
        )


def _passed(one: RankOutcome) -> bool:
    """Whether a rank reported its function's end: one that raises SystemExit(0) does not."""
    return one.report is not None and one.report.kind == "passed"


def _same(one: RankOutcome, other: RankOutcome) -> bool:
    """Whether two ranks have failed in the same line by the same: which was first says nothing then."""
    if one.report is None or other.report is None:
        return one is other
    return (one.report.line, one.report.place) == (other.report.line, other.report.place)


def _skip(first: RankOutcome, everywhere: bool) -> None:
    report = first.report
    assert report is not None
    reason = report.line if everywhere else f"rank {first.rank}: {report.line}"
    try:
        import pytest
    except ModuleNotFoundError:
        raise unittest.SkipTest(reason) from None
    if report.kind == "xfailed":
        pytest.xfail(reason)
    pytest.skip(reason)


def _ended(outcome: RankOutcome, reported: bool) -> str:
    code = outcome.code
    how = _left(code, "was", "exited")
    if not reported:
        return how
    if outcome.report is not None:
        return f"{how}, after its function had returned"
    return f"{how} before its function had returned" if code >= 0 else how


def _left(code: int, be: str = "is", leave: str = "exits") -> str:
    """'is killed by SIGKILL' or 'exits with 3'."""
    if code >= 0:
        return f"{leave} with {code}"
    return f"{be} killed by {signal_name(-code)}"


def _described(outcome: RankOutcome, reported: bool) -> str:
    report = outcome.report
    if report is None or report.kind != "failed":
        return _ended(outcome, reported)
    return f"{report.line} ({report.place})" if report.place else report.line


def _tail(outcome: RankOutcome) -> str:
    lines = outcome.output.rstrip().splitlines()
    cut = [f"… {len(lines) - TAIL} lines before"] if len(lines) > TAIL else []
    return "\n".join([*cut, *lines[-TAIL:]])
