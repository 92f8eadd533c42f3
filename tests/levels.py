"""Test levels: tests that the quick run leaves out are marked `slow`, with the reason.

The summary counts them. `-m slow` runs them alone, and `-m ""` all tests. With `--share 1/3` a run
takes a third of what it would take, with 0/3 and 2/3 the others: `.ci/run` takes another one each day.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Generator, Iterable
from typing import Any

import pytest

MORE = "more of the same"
"""Reason of most slow tests: what they show, another one shows at one size, place or transport."""


COSTLY = "half a second of CPU, or more"
"""Reason of the other slow tests: most start processes. Each kind of them has quick ones that take less."""


def few(values: Iterable[Any], quick: Collection[Any], reason: str = MORE) -> list[Any]:
    """Values of a parametrisation, or rows of them, of which the quick run takes only those in `quick`."""
    values = list(values)
    assert all(any(value == one for value in values) for one in quick)
    slow = pytest.mark.slow(reason)
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        value if value in quick else pytest.param(*row, marks=slow)
        for value, row in zip(values, rows, strict=True)
    ]


_LEFT_OUT = pytest.StashKey[int]()


def reason_of(item: pytest.Item) -> str:
    """Reason that a test's `slow` markers give; '' where one of them gives none, or something else."""
    reasons = [marker.args for marker in item.iter_markers("slow")]
    given = all(len(args) == 1 and isinstance(args[0], str) and args[0] for args in reasons)
    return reasons[0][0] if given else ""


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is left out yet."""
    config.stash[_LEFT_OUT] = 0


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail the collection of a file in which a marker gives no reason, also where its test is left out."""
    report = yield
    items = [item for item in report.result if isinstance(item, pytest.Item)] if report.passed else []
    if wrong := [item.nodeid for item in items if item.get_closest_marker("slow") and not reason_of(item)]:
        report.outcome = "failed"
        report.longrepr = f"pytest.mark.slow takes the reason, as one text: {', '.join(wrong)}"
        report.result = []
    return report


def in_share(name: str, share: str) -> bool:
    """Whether a test belongs to a share 'K/N' of all: number K, from 0 on, of N. Each belongs to one."""
    number, count = map(int, share.split("/"))
    return zlib.crc32(name.encode()) % count == number


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option, since a run that a test begins would inherit a variable."""
    parser.addoption("--share", metavar="K/N", help="take part K, from 0 on, of N of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the share of the tests that `--share` names."""
    share = config.getoption("share")
    if share is not None:
        others = [item for item in items if not in_share(item.nodeid, share)]
        items[:] = [item for item in items if in_share(item.nodeid, share)]
        config.hook.pytest_deselected(items=others)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out because it is slow."""
    for item in items:
        item.config.stash[_LEFT_OUT] += item.get_closest_marker("slow") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand the number to the run."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has ended: each has collected, and left out, the same tests."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_LEFT_OUT] = left_out


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line in the run's summary."""
    if left_out := terminalreporter.config.stash[_LEFT_OUT]:
        terminalreporter.write_line(f"left out as slow: {left_out}; `-m slow` runs them")
