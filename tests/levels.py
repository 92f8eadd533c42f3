"""Test levels: tests that the quick run leaves out are marked `slow`, with the reason.

The summary counts them by reason. `-m slow` runs them alone, and `-m ""` all tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import pytest

from tests.skips import summary

MORE = "more of the same"
"""Reason of most slow tests: what they show, another one shows at one size, place or transport."""


def few(values: Iterable[Any], quick: Collection[Any], reason: str = MORE) -> list[Any]:
    """Values of a parametrisation, of which the quick run takes only those in `quick`."""
    values = list(values)
    assert all(any(value == one for value in values) for one in quick)
    slow = pytest.mark.slow(reason)
    return [value if value in quick else pytest.param(value, marks=slow) for value in values]


_LEFT_OUT = pytest.StashKey[Counter[str]]()


def reason_of(marker: pytest.Mark) -> str:
    """Reason that a `slow` marker gives.

    Raises:
        pytest.UsageError: none is given, or something else.
    """
    match marker.args, marker.kwargs:
        case (str(reason),), {} if reason:
            return reason
    raise pytest.UsageError(f"slow{marker.args!r}: it takes the reason, as one text")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is left out yet."""
    config.stash[_LEFT_OUT] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check every marker, also of tests that this run leaves out."""
    for item in items:
        for marker in item.iter_markers("slow"):
            try:
                reason_of(marker)
            except pytest.UsageError as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out because it is slow."""
    for item in items:
        if (marker := item.get_closest_marker("slow")) is not None:
            item.config.stash[_LEFT_OUT][reason_of(marker)] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand the counts to the run."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has ended: each has collected, and left out, the same tests."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In the run's summary, a few lines."""
    left_out = terminalreporter.config.stash[_LEFT_OUT]
    for line in summary(left_out.elements(), "left out as slow"):
        terminalreporter.write_line(line)
