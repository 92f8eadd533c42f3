"""One live line on a terminal; elsewhere a line for each suite."""

from __future__ import annotations

import shutil
import sys
import time


class Progress:
    """A display of how far the run is.

    Args:
        steps: how many there will be.
    """

    def __init__(self, steps: int) -> None:
        self._steps = max(1, steps)
        self._done = 0
        self._suite = ""
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()

    def step(self, suite: str, label: str) -> None:
        """Show that a step begins."""
        self._label = label
        if suite != self._suite and not self._live:
            print(f"{self._elapsed()}  {suite}", file=sys.stderr, flush=True)
        self._suite = suite
        self.show("")
        self._done += 1

    def show(self, detail: str) -> None:
        """Show what is measured in this moment."""
        if self._live:
            share = 100 * max(0, self._done - 1) // self._steps
            text = f"{share:3d}% {self._elapsed()}  {self._suite}: {self._label} {detail}"
            self._draw(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._draw("")
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._live:
            self._draw("")

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes:d}:{seconds:02d}"

    @staticmethod
    def _draw(text: str) -> None:
        columns = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{text[:columns]}")
        sys.stderr.flush()
