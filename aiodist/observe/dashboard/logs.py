"""What the ranks of this host have printed, as far as the launcher wrote it into files.

The layout is that of `aiodist run`: attempt_<n>/<local rank>/{stdout,stderr}.log in a folder. A page asks for
a file by the place that it has in a list, never by a path; nothing is read along a link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from aiodist.base.environment.files import Folder
from aiodist.observe.output import lines
from aiodist.observe.page import text
from aiodist.observe.view import RankView

STREAMS = ("stdout", "stderr")
MOST = 1 << 16
"""Bytes of a file that are read at once."""

_MOST_FILES = 8192
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
_LOCAL = re.compile(r"\d{1,5}")
_OUTPUT = re.compile(r"attempt_\d{1,6}/\d{1,5}")


@dataclass(frozen=True, slots=True)
class Output:
    """Where one start of a worker has printed to: `<folder>/attempt_<attempt>/<local>`."""

    folder: str
    attempt: int
    local: int

    def open(self, stream: str) -> int:
        """A descriptor of one of its files.

        Raises:
            OSError: there is none; or a part of its path is a link, another user's, or others may write to
                it.
        """
        with ExitStack() as stack:
            above = stack.enter_context(Folder.open(self.folder))
            attempt = stack.enter_context(above.folder(f"attempt_{self.attempt}"))
            local = stack.enter_context(attempt.folder(str(self.local)))
            return local.file(f"{stream}.log")


class Logs:
    """The logs of a job's ranks.

    Args:
        host: the name of this host: ranks of others have their files there.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._folders: dict[str, None] = {}
        self._ranks: dict[Output, int] = {}
        self._outputs: list[Output] = []
        self._elsewhere: dict[str, str] = {}

    def add(self, folder: str) -> None:
        """Add a folder that the launcher has named."""
        self._folders[folder] = None

    def see(self, views: Iterable[RankView]) -> None:
        """Note where the ranks print to, as they tell; look for files that are new."""
        for view in views:
            about = view.recording.about
            folder, output = about.get("log_dir"), about.get("output")
            if not isinstance(folder, str) or not os.path.isabs(folder) or not _may_exist(folder):
                continue
            if view.host != self._host:
                self._elsewhere[view.host] = folder
            elif isinstance(output, str) and _OUTPUT.fullmatch(output):
                attempt, local = output.split("/")
                self._folders[folder] = None
                self._ranks[Output(folder, int(attempt.removeprefix("attempt_")), int(local))] = view.rank
        known = set(self._outputs)
        self._outputs += sorted(
            {one for folder in self._folders for one in _found(folder)} - known,
            key=lambda one: (one.attempt, one.local),
        )

    def to_json(self) -> dict[str, Any]:
        """The logs: 'outputs', each with its 'id', 'attempt', 'local' and 'rank' (None: it has not told of
        one); 'elsewhere', the folders on other hosts, by host."""
        outputs = [
            {"id": number, "attempt": one.attempt, "local": one.local, "rank": self._ranks.get(one)}
            for number, one in enumerate(self._outputs)
        ]
        elsewhere = {text(host): text(folder) for host, folder in self._elsewhere.items()}
        return {"outputs": outputs, "elsewhere": elsewhere}

    def read(self, number: int, stream: str, start: int) -> dict[str, Any]:
        """Lines of a file.

        Args:
            number: the place in 'outputs'.
            stream: 'stdout' or 'stderr'.
            start: byte from which on; below 0: its end.

        Returns:
            'lines'; 'from' and 'next', the bytes at which they begin and end; 'error', why there are none.
        """
        if not 0 <= number < len(self._outputs) or stream not in STREAMS:
            return _nothing("there is no such output")
        try:
            handle = self._outputs[number].open(stream)
        except FileNotFoundError:
            return _nothing("nothing is written to a file here")
        except OSError as error:
            return _nothing(f"it is not shown: {error.strerror or error}")
        with os.fdopen(handle, "rb") as file:
            size = os.fstat(handle).st_size
            tail = start < 0 or start > size  # it was cut
            begin = max(0, size - MOST) if tail else start
            data = os.pread(file.fileno(), MOST, begin)
        if tail and begin:
            cut = data.find(b"\n") + 1
            begin, data = begin + cut, data[cut:]
        end = data.rfind(b"\n") + 1
        if not end and len(data) == MOST:
            end = MOST  # a line without an end
        return {"from": begin, "next": begin + end, "lines": lines(data[:end]), "error": ""}


def _may_exist(path: str) -> bool:
    """Whether this can be a path at all: no system call takes one with a zero byte."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _nothing(why: str) -> dict[str, Any]:
    return {"from": 0, "next": 0, "lines": [], "error": why}


def _found(folder: str) -> Iterable[Output]:
    """The outputs in a folder."""
    found: list[Output] = []
    with suppress(OSError), Folder.open(folder) as above:
        for name in above.names():
            attempt = _ATTEMPT.fullmatch(name)
            if attempt is None:
                continue
            with suppress(OSError), above.folder(name) as inside:
                for local in inside.names():
                    if _LOCAL.fullmatch(local) and len(found) < _MOST_FILES:
                        found.append(Output(folder, int(attempt[1]), int(local)))
    return found
