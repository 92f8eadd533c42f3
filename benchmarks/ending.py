"""The end of a benchmark by a signal: SIGTERM ends it as Ctrl-C does, so that it leaves nothing behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


def run_main(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Exit with what `main` returns for the command line; with 130 if a signal ends it.

    A shell has what it starts in the background ignore SIGINT; here that ends it, too.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
