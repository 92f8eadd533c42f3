"""How a launcher's job has ended: the launcher's own judgement, for all who show it later. Pure.

The launcher sees how each process ends, and knows which failed first; records of ranks do not. So where there
is an outcome, it is what is told, and records only add what ranks did last.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from aiodist.base.errors import WireError
from aiodist.base.sanitize import indented, one_line
from aiodist.net.wire.typed import build
from aiodist.observe.recorder.reading import sound
from aiodist.observe.verdict import Verdict

ENDED = "ended"
"""The kind of a verdict that a launcher has given."""

LARGEST = 1 << 20
"""Bytes of an outcome as JSON, at most."""

_LINE = 2000  # characters of a line
_MOST = 200  # lines


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a launcher's job.

    Args:
        run: the number of the launcher's run (`leaving.RUN`).
        script: what its workers ran.
        size: ranks that it had.
        code: exit code of the job; 0: it ended well, and yet something had failed before.
        ended: when, in seconds since 1970.
        title: who failed first, how and when: 'rank 2 failed first: killed by SIGKILL at 13:26:35 UTC'.
        rank: the one that failed first; -1: none did.
        error: what that one told last, with the program's line; '' where it told nothing.
        lines: on that one, as the launcher shows them; others: on the other ranks.
        advice: what to do; '': nothing.
        folder: with what the ranks did last; '': there is none.
        again: the job has begun again since; another outcome follows.
    """

    run: str
    script: str
    size: int
    code: int
    ended: float
    title: str
    rank: int = -1
    error: str = ""
    lines: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    advice: str = ""
    folder: str = ""
    again: bool = False

    @property
    def verdict(self) -> Verdict:
        """As a verdict, for those who show such."""
        advice = (f"→ {self.advice}",) if self.advice else ()
        ranks = (self.rank,) if self.rank >= 0 else ()
        title = f"{self.title} · {self.error}" if self.error else self.title
        return Verdict(ENDED, ranks, title, (*self.lines, *self.others, *advice), f"{ENDED} {self.run}")

    def at(self, folder: str) -> Outcome:
        """This outcome, with another folder."""
        return replace(self, folder=folder)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Outcome:
        """From what `to_json` made; texts are a printable line each.

        Raises:
            WireError: this is none.
        """
        try:
            known = {field.name for field in fields(cls)}
            found = build(cls, {name: value for name, value in data.items() if name in known}, _line)
        except (TypeError, AttributeError, OverflowError) as error:
            raise WireError(f"this is no outcome of a job: {one_line(str(error), 100)}") from error
        if not sound(found.size, found.code, found.ended, found.rank):
            raise WireError("this is no outcome of a job: a number is too large")
        return replace(found, lines=found.lines[:_MOST], others=found.others[:_MOST])

    @classmethod
    def parse(cls, text: bytes) -> Outcome:
        """From JSON. Errors as of `from_json`."""
        try:
            if len(text) > LARGEST:
                raise ValueError("it is too long")
            return cls.from_json(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise WireError(f"this is no outcome of a job: {one_line(str(error), 100)}") from error


def _line(text: str) -> str:
    return indented(text, _LINE)
