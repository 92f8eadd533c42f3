"""The amount of work: all of it, or as much as an impatient reader, or CI, has time for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiodist.base.environment.cores import affinity
from benchmarks.deaths.figures import Figures

TRANSPORTS = {"shm": "shared memory", "tcp": "TCP"}


@dataclass
class Scale:
    """Handed to every row.

    Attributes:
        whole: the full counts.
        quick: the smallest that means anything: for tests of the rows themselves.
        seed: of everything random; the same seed does the same to the same ranks.
        quiet: show no progress.
    """

    whole: bool = False
    quick: bool = False
    seed: int = 1
    quiet: bool = False
    _said: float = field(default=0.0, repr=False)

    def pick(self, quick: int, usual: int, whole: int) -> int:
        """One of three counts."""
        return quick if self.quick else whole if self.whole else usual

    def times(self, figures: Figures, repeats: int) -> Iterator[int]:
        """Numbers from 0 on, one for each time that something is done; each is shown."""
        for number in range(repeats):
            self.step(figures.row, f"{figures.what}, {number + 1} of {repeats}")
            yield number

    def step(self, row: int, text: str) -> None:
        """Progress: a live line on a terminal, elsewhere one every ten seconds."""
        if self.quiet:
            return
        live = sys.stderr.isatty()
        if live or time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            start, end = ("\r\x1b[K", "") if live else ("", "\n")
            print(f"{start}row {row}: {text}", end=end, file=sys.stderr, flush=True)


def limit_of(ranks: int) -> float:
    """Milliseconds from a death to the error: ranks that share cores take turns."""
    return 20.0 if ranks <= affinity() else 100.0
