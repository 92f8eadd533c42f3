"""Running a script inside of a framework's process, as if it had been started there."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence


def run_script(words: Sequence[str]) -> None:
    """Run a script with its arguments in this process."""
    before = sys.argv
    sys.argv = list(words)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
