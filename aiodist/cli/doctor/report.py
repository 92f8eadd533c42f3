"""Findings as lines for people, and as a dict for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiodist.base.terminal import PLAIN, Paint, Style
from aiodist.cli.doctor.topic import Finding, State

Report = Mapping[str, Sequence[Finding]]
"""Findings by the headings of their sections."""

_STYLES: dict[State, Style] = {"ok": "green", "limited": "yellow", "missing": "red"}


def as_lines(report: Report, paint: Paint = PLAIN) -> Iterator[str]:
    """Aligned, under headings; what is lost and how to mend it below each finding that is not ok."""
    width = max((len(finding.name) for findings in report.values() for finding in findings), default=0)
    indent = " " * (2 + width + 2 + len("limited") + 2)
    for number, (section, findings) in enumerate(report.items()):
        if number:
            yield ""
        yield paint("bold", section)
        for name, state, value, cost, fix in findings:
            # What is missing and costs nothing here is no trouble.
            style = "dim" if state == "missing" and not fix else _STYLES[state]
            yield f"  {name:<{width}}  {paint(style, f'{state:<7}')}  {value}"
            if cost:
                yield f"{indent}costs: {cost}"
            if fix:
                yield f"{indent}fix:   {paint('cyan', fix)}"


def as_dict(report: Report) -> dict[str, Any]:
    """The whole report; 'works': the host backend does."""
    findings = [
        {"section": section, **finding._asdict()}
        for section, findings in report.items()
        for finding in findings
    ]
    return {"works": host_works(report), "findings": findings}


def host_works(report: Report) -> bool:
    """Whether two ranks of this host can work together."""
    return any(finding.name == "host" and finding.state != "missing" for finding in report["backends"])
