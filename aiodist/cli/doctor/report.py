"""Findings as lines for people, and as a dict for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aiodist.base.terminal import PLAIN, Paint, Style
from aiodist.cli.doctor.checks.backends import HOST
from aiodist.cli.doctor.finding import Section, State

_STYLES: dict[State, Style] = {"ok": "green", "limited": "yellow", "missing": "red"}


def as_lines(sections: Sequence[Section], paint: Paint = PLAIN) -> Iterator[str]:
    """Aligned, under headings; what is lost and how to mend it below each finding that is not ok."""
    findings = [finding for section in sections for finding in section.findings]
    width = max((len(finding.name) for finding in findings), default=0)
    indent = " " * (2 + width + 2 + len("limited") + 2)
    for number, section in enumerate(sections):
        if number:
            yield ""
        yield paint("bold", section.title)
        for finding in section.findings:
            # What is missing and costs nothing here is no trouble.
            style = "dim" if finding.state == "missing" and not finding.fix else _STYLES[finding.state]
            yield f"  {finding.name:<{width}}  {paint(style, f'{finding.state:<7}')}  {finding.value}"
            if finding.cost:
                yield f"{indent}costs: {finding.cost}"
            if finding.fix:
                yield f"{indent}fix:   {paint('cyan', finding.fix)}"


def as_dict(sections: Sequence[Section]) -> dict[str, Any]:
    """The whole report; 'works': the host backend does."""
    return {
        "works": host_works(sections),
        "findings": [
            {"section": section.title, **asdict(finding)}
            for section in sections
            for finding in section.findings
        ],
    }


def host_works(sections: Sequence[Section]) -> bool:
    """Whether two ranks of this host can work together."""
    return any(
        finding.name == HOST and finding.state != "missing"
        for section in sections
        for finding in section.findings
    )
