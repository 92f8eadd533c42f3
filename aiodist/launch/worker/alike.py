"""Errors of several workers at the same time: those with the same text are shown once, with all their ranks.

What a worker writes to stderr from the first line of an error on is held back for a moment, in which others
may write the same. All other output is shown at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby

from aiodist.launch.worker.lines import begins_error, without_prefix
from aiodist.launch.worker.output import Console
from aiodist.net.alarm import Alarm

MOMENT = 0.4
"""Seconds from the first line of an error until those that have come are shown."""

_MOST = 500  # lines of one worker that are held back


class Alike:
    """The errors that the workers of one node write.

    Args:
        loop: the agent's loop.
        console: where they are shown.
        prefix_of: the line prefix of several ranks together.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        console: Console,
        prefix_of: Callable[[Sequence[int]], bytes],
    ) -> None:
        self._loop = loop
        self._console = console
        self._prefix_of = prefix_of
        self._held: dict[int, tuple[bytes, list[bytes]]] = {}  # by rank: its line prefix, its lines
        self._alarm = Alarm(loop, self.flush)

    def write(self, rank: int, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Show lines of a worker, or hold them back.

        Args:
            rank: the worker's.
            prefix: before each of its lines.
            lines: whole, without their ends.
        """
        if rank in self._held:
            held = self._held[rank][1]
            held += lines
            if len(held) > _MOST:
                self.flush()
            return
        start = next((place for place, line in enumerate(lines) if begins_error(line)), len(lines))
        if lines[:start]:
            self._console.line(prefix, *lines[:start])
        if lines[start:]:
            self._held[rank] = (prefix, list(lines[start:]))
            self._alarm.by(self._loop.time() + MOMENT)

    def flush(self) -> None:
        """Show what is held back."""
        self._alarm.set()
        held, self._held = self._held, {}
        same: dict[tuple[bytes, ...], list[int]] = {}
        for rank, (_, lines) in held.items():
            same.setdefault(tuple(map(without_prefix, lines)), []).append(rank)
        for texts, ranks in same.items():
            if len(ranks) > 1:
                self._console.line(self._prefix_of(sorted(ranks)), *texts)
            else:
                prefix, lines = held[ranks[0]]
                self._console.line(prefix, *lines)


def ranges(ranks: Sequence[int]) -> str:
    """'0–3', '0, 2, 5–7': sorted numbers, with three or more in a row as a range."""
    parts: list[str] = []
    for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        row = [rank for _, rank in run]
        parts += [f"{row[0]}–{row[-1]}"] if len(row) > 2 else map(str, row)
    return ", ".join(parts)
