"""The output of a command, and the error where nobody can take it."""

from __future__ import annotations

import os
import signal

from aiodist.base.errors import AiodistError


def show(text: str) -> None:
    """Print, and see that it has arrived.

    Raises:
        AiodistError: it cannot be written.
        SystemExit: whoever read it has gone: nothing to say, and to nobody.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _let_go()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(128 + signal.SIGPIPE) from None
        raise AiodistError(f"cannot write to standard output: {error.strerror or error}") from None


def _let_go() -> None:
    """Discard buffered output, which would be written at the end of the process, and fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
