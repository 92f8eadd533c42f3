"""Skipped tests as a count for each reason, most first: a few lines, and not one for each place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

_WIDTH = 110


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In the run's summary; -rs still lists them all."""
    for line in summary(reason_of(report) for report in terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(reason).removeprefix("Skipped: ")


def summary(reasons: Iterable[str]) -> list[str]:
    """The lines."""
    counts = Counter(reasons)
    if not counts:
        return []
    lines = [f"skipped {counts.total()}: "]
    for number, (reason, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        text = f"{'; ' if number else ''}{count} {reason}"
        if len(lines[-1]) + len(text) > _WIDTH and number:
            lines[-1] += ";"
            lines.append(f"  {count} {reason}")
        else:
            lines[-1] += text
    return lines
