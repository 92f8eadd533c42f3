"""A debugger in a rank: it talks through the test's process, which has the terminal.

    rank: pdb ──{"write": text} | {"read": true}──▶ test's process ──▶ the terminal
              ◀──────────{"line": text}───────────

One rank at a time: the others wait at their `breakpoint()`. A rank has the terminal from a prompt until it
goes on, so two ranks can be stepped by turns. Meanwhile no deadline passes: neither the test's nor an
operation's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pdb
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from aiodist.base.errors import UsageError

BREAKS = "AIODIST_BREAKPOINT"
"""Variable with the one rank that stops at `breakpoint()`; the others pass it."""

_LONGEST = 100  # bytes of a Unix socket's path, which systems limit to about that
_HELD = "held"  # the file that is there while a rank has the terminal


class Terminal:
    """The test's side.

    Args:
        folder: of the test.
        around: a context in which the terminal can be used, whatever captures it otherwise.
        read: reads a line from it; '' at its end.
        write: writes to it.
        why_not: why there is none; '' where there is one.
    """

    def __init__(
        self,
        folder: Path,
        around: Callable[[], contextlib.AbstractContextManager[object]],
        read: Callable[[], str],
        write: Callable[[str], object],
        why_not: str,
    ) -> None:
        self.path = str(folder / "terminal")
        if len(self.path) > _LONGEST:
            self.path, why_not = "", f"the path {self.path!r} is too long for a socket: set a shorter TMPDIR"
        self._why_not = why_not
        self._rest: list[str] = []  # what ranks print while one has the terminal
        self._held = folder / _HELD
        self._around = around
        self._read = read
        self._write = write
        self._turn = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._free_at = time.monotonic()

    async def start(self) -> None:
        """Listen."""
        if self.path:
            self._server = await asyncio.start_unix_server(self._serve, self.path)

    @property
    def held(self) -> bool:
        """Whether a rank has it."""
        return self._turn.locked()

    @property
    def free_for(self) -> float:
        """Seconds for which nobody has had it."""
        return 0.0 if self.held else time.monotonic() - self._free_at

    def say(self, text: str) -> None:
        """Show a line that a rank has printed; later, where one has the terminal."""
        if self.held:
            self._rest.append(text)
        else:
            self.say_rest()
            self._write(text)

    def say_rest(self) -> None:
        """Show what was kept back."""
        rest, self._rest = self._rest, []
        for text in rest:
            self._write(text)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._why_not:
                writer.write(f"{self._why_not}\n".encode())
                return
            async with self._turn:
                self._held.touch()
                writer.write(b"\n")  # it is yours
                try:
                    with self._around():
                        await self._talk(reader, writer)
                finally:
                    self._held.unlink()
                    self._free_at = time.monotonic()
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.readline():
            order = json.loads(said)
            if "write" in order:
                self._write(order["write"])
            else:
                line = await asyncio.to_thread(self._read)
                writer.write(json.dumps({"line": line}).encode() + b"\n")


class _Line:
    """The rank's end of the terminal, as the files that pdb reads and writes."""

    encoding = "utf-8"

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._file: Any = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the terminal; this waits until it is free."""
        if self._socket is not None:
            yield
            return
        if not self._path:
            raise UsageError("the rank cannot stop for a debugger: set a shorter TMPDIR")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            with connection.makefile("rwb") as file:
                self._socket, self._file = connection, file
                try:
                    why_not = file.readline().decode().strip()
                    if why_not:
                        raise UsageError(f"the rank cannot stop for a debugger: {why_not}")
                    yield
                finally:
                    self._socket = self._file = None

    def write(self, text: str) -> int:
        if self._file is not None:
            self._file.write(json.dumps({"write": text}).encode() + b"\n")
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def readline(self) -> str:
        self._file.write(b'{"read": true}\n')
        self._file.flush()
        said = self._file.readline()
        return str(json.loads(said)["line"]) if said else ""


class _RankPdb(pdb.Pdb):
    """pdb that has the terminal only while it asks."""

    def __init__(self, line: _Line, rank: int) -> None:
        super().__init__(stdin=line, stdout=line, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.use_rawinput = False
        self.prompt = f"(rank {rank}) "
        self._line = line

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        with self._line.held():
            super().interaction(frame, traceback)


class Debugger:
    """The rank's side.

    Args:
        path: of the terminal's socket.
        rank: this one.
        folder: of the test.
        breaks: the rank that stops at `breakpoint()`; -1: all.
    """

    def __init__(self, path: str, rank: int, folder: Path, breaks: int) -> None:
        self._line = _Line(path)
        self._rank = rank
        self._held = folder / _HELD
        self._breaks = breaks

    def install(self) -> None:
        """Have `breakpoint()` come here, and no deadline pass while anybody has the terminal."""
        from aiodist.group.deadlines import Flight

        sys.breakpointhook = self._break
        pdb.set_trace = self._break
        Flight.pauses = self._held.exists

    def _break(self, *_: object, **__: object) -> None:
        if self._breaks in (-1, self._rank):
            _RankPdb(self._line, self._rank).set_trace(sys._getframe(1))

    def post_mortem(self, error: BaseException) -> None:
        """Stop where an exception was raised."""
        trace: TracebackType | None = error.__traceback__
        debugger = _RankPdb(self._line, self._rank)
        debugger.reset()
        with self._line.held():
            self._line.write(f"\nrank {self._rank}: {type(error).__name__}: {error}\n")
            debugger.interaction(None, trace)


def breaks() -> int:
    """The rank that is to stop, by the environment; -1: all.

    Raises:
        ValueError: it is no rank.
    """
    given = os.environ.get(BREAKS, "")
    if given and not given.isdecimal():
        raise ValueError(f"{BREAKS}={given!r} is not a rank: give the number of the one that is to stop")
    return int(given) if given else -1
