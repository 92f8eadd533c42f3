"""The dashboard beside a job: a process of its own. The launcher tells it which job it is, and how it ended.

It is told by its stdin, and what it says to the operator comes by its stdout, as lines. So no address with a
token is in anybody's arguments, and nothing of the launcher listens for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiodist.net.within import happens
from aiodist.observe.outcome import Outcome

_COMMAND = (sys.executable, "-m", "aiodist", "dashboard", "--beside")
_PARTING = 5.0  # seconds for it to end, or to say that pages are open
_LONGEST = 1 << 16  # bytes of a line


class Dashboard:
    """The process.

    Args:
        say: shows a line to the operator.
        run: the number of the launcher's run.
        secret: of the job, by which its store is reached; '': none.
        logs: folder of the workers' output; '': there is none.
        terminal: what `say` shows goes to a terminal.
    """

    def __init__(
        self, say: Callable[[str], None], run: str, secret: str, logs: str, *, terminal: bool
    ) -> None:
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._heard = b""
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C in the terminal is for the job
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._from.fileno(), False)
        self._loop.add_reader(self._from.fileno(), self._readable)
        self._tell({"run": run, "secret": secret, "logs": logs, "terminal": terminal})

    async def over(self, code: int, records: str, outcome: Outcome | None) -> None:
        """Tell the end of the job; returns when the process has ended, or stays for who reads the page.

        Args:
            code: the job's exit code.
            records: folder with what its ranks did last; '': there is none.
            outcome: what the launcher says of it; None: nothing has failed.
        """
        told = None if outcome is None else outcome.to_json()
        self._tell({"over": code, "records": records, "outcome": told})
        with suppress(OSError):
            self._to.close()
        await happens(self._gone, _PARTING)
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # it has closed its output: it ends now, or outlives this process

    def _tell(self, words: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended; the job goes on
            self._to.write(json.dumps(words).encode() + b"\n")
            self._to.flush()

    def _readable(self) -> None:
        try:
            data = os.read(self._from.fileno(), _LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        *lines, self._heard = (self._heard[-_LONGEST:] + data).split(b"\n")
        for line in lines:
            self._say(line.decode("utf-8", "replace"))

    def _close(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._loop.remove_reader(self._from.fileno())
            self._from.close()
