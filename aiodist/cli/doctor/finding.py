"""The result of a check on one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: of the thing.
        state: 'ok'; 'limited': it works, or the rest does, and something is lost; 'missing'.
        value: what was found, in a few words.
        cost: what is lost where it is not 'ok'; '' where nothing is.
        fix: the one command, or step, that mends it; '' where nothing can.
    """

    name: str
    state: State
    value: str
    cost: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Section:
    """Findings under a heading."""

    title: str
    findings: Sequence[Finding]
