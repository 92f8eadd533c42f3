"""The budget of a quick test, in CPU seconds of all processes that it starts. A test that takes more fails.

The run's summary gives the sum of all tests. `--costs=FILE` writes each test's own, most expensive first.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.processes import children

BUDGET = 10.0
"""CPU seconds that a quick test may take. Tests are marked slow from about 0.5 on. In between lie: a busy
machine, whose threads share cores (twice as many); a library that the first test imports; and processes of a
launcher's, which count only where their parent waits for them before it ends."""

_TICKS = os.sysconf("SC_CLK_TCK")
_COST = "CPU seconds"
_BEFORE = pytest.StashKey[float]()
_SPENT: dict[str, float] = {}


def used() -> float:
    """CPU seconds of this process, of its children that have ended, and of what its servers forked.

    A server's own do not count: it imports for all tests that come.
    """
    return sum(os.times()[:4]) + sum(_waited_for(pid) for pid in children())


def _waited_for(pid: int) -> float:
    """CPU seconds of a process's children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / _TICKS


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file for the costs."""
    parser.addoption("--costs", metavar="FILE", help="write there what each test took, in CPU seconds")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Begin to count."""
    item.stash[_BEFORE] = used()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Count, and fail what is too expensive for the quick run."""
    done = yield
    spent = used() - item.stash[_BEFORE]
    item.user_properties.append((_COST, spent))
    if spent > BUDGET and item.get_closest_marker("slow") is None:
        pytest.fail(
            f"took {spent:.1f} CPU seconds of {BUDGET:g}: make it cheaper, or mark it slow", pytrace=False
        )
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the run, which hears of the tests of all its workers."""
    if report.when == "teardown":
        spent = [float(str(value)) for name, value in report.user_properties if name == _COST]
        _SPENT[report.nodeid] = sum(spent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line, and the file."""
    terminalreporter.write_line(f"tests took {sum(_SPENT.values()):.0f} CPU seconds")
    if path := terminalreporter.config.getoption("costs"):
        rows = sorted(_SPENT.items(), key=lambda row: -row[1])
        Path(path).write_text("".join(f"{spent:.3f} {name}\n" for name, spent in rows))
