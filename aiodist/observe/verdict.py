"""Why a job stands still, from what is seen of its ranks: by majority and program order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.observe.view import JobView

AFTER = 30.0
"""Seconds for which an operation is pending before a job counts as standing still."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job stands still, or is slow.

    Args:
        kind: 'blocked', 'held', 'stopped', 'late', 'branched', 'deadlock', 'unreceived', 'dead', 'straggler'.
        ranks: that cause it.
        title: in one line.
        lines: the details, in the order in which they are to be read.
        about: what it is about; the same for as long as it is the same trouble.
    """

    kind: str
    ranks: tuple[int, ...]
    title: str
    lines: tuple[str, ...]
    about: str


def judge(job: JobView, after: float = AFTER) -> tuple[Verdict, ...]:
    """The verdicts on a job; () where all is well.

    Args:
        after: seconds for which an operation has to be pending before anything is said.
    """
    return ()
