"""The workers' output on its way to the console and to files: whole lines, prefixed, never blocking.

`Console` writes to the agent's own stdout or stderr. A slow reader there must not stop the agent from
seeing signals and deaths, and the descriptor is shared with the shell, so it cannot be made
non-blocking: the console asks poll() before each write of at most PIPE_BUF bytes. When too much is
waiting, the relays stop reading, the workers' pipes fill, and the workers wait: back-pressure.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from aiodist.base.terminal import CLEAR
from aiodist.launch.worker.lines import LastWords, LineSplitter, Piece
from aiodist.net.within import happens

CHUNK = 4096  # PIPE_BUF: after POLLOUT a pipe takes that much without blocking, and in one piece
HIGH = 1 << 20
_PIPE_CAPACITY = 1 << 20
_CLEAR = CLEAR.encode()
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # the reader, or the terminal


class Console:
    """One of the agent's own output descriptors.

    Args:
        loop: the agent's loop.
        fd: 1 or 2; not owned.
        lost: told why what is written is lost from now on, unless nobody is there to read it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, lost: Callable[[str], None] = lambda why: None
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._lost = lost
        self._buffer = bytearray()
        self._live = False  # the cursor stands behind a line that will be drawn over
        self._waiting = False
        self._on_room: list[Callable[[], None]] = []
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self.broken = False
        self.is_terminal = os.isatty(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        try:
            self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            self._regular, self.broken = False, True

    @property
    def full(self) -> bool:
        """Whether relays should stop reading until `when_room` calls back."""
        return len(self._buffer) > HIGH

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call once, as soon as there is room again."""
        self._on_room.append(callback)

    def line(self, prefix: bytes, *texts: bytes) -> None:
        """Whole lines, each with the prefix."""
        ends = b"\n" + prefix
        self.write((_CLEAR if self._live else b"") + prefix + ends.join(texts) + b"\n")
        self._live = False

    def live_line(self, prefix: bytes, text: bytes, columns: int) -> None:
        """A line that the next one draws over; only for terminals.

        Args:
            prefix: with its colours.
            text: the line.
            columns: room for `text`; a longer one would wrap and could not be drawn over.
        """
        if b"\x1b" not in text:
            text = text.decode("utf-8", "replace")[:columns].encode()
        self.write((_CLEAR if self._live else b"") + prefix + text)
        self._live = True

    def write(self, data: bytes) -> None:
        """Bytes as they are. Dropped when the other end of the descriptor is gone."""
        if self.broken:
            return
        self._buffer += data
        self._empty.clear()
        if not self._waiting:
            self._pump()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all is written, at most `timeout` seconds; then drop the rest."""
        if self._live:
            self.write(b"\n")
            self._live = False
        if not await happens(self._empty, timeout):
            self.drop()

    def _pump(self) -> None:
        while self._buffer:
            try:
                if not self._regular and not self._poll.poll(0):
                    raise BlockingIOError
                written = os.write(self._fd, self._next())
            except BlockingIOError:
                if not self._waiting:
                    self._waiting = True
                    self._loop.add_writer(self._fd, self._pump)
                return
            except OSError as error:  # the job goes on without
                self.drop()
                if self._regular or error.errno not in _GONE:
                    self._lost(error.strerror or str(error))
                return
            del self._buffer[:written]
        self._rest()

    def _next(self) -> bytes:
        """As much as may be written at once: whole lines, so that a shared pipe stays readable."""
        if self._regular or len(self._buffer) <= CHUNK:
            return bytes(self._buffer)
        end = self._buffer.rfind(b"\n", 0, CHUNK) + 1
        return bytes(self._buffer[: end or CHUNK])

    def drop(self) -> None:
        """Forget what is not written yet, and all that follows."""
        self.broken = True
        self._buffer.clear()
        self._rest()

    def _rest(self) -> None:
        """Stop watching for room: nothing is left to write."""
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._fd)
        self._empty.set()
        callbacks, self._on_room = self._on_room, []
        for callback in callbacks:
            callback()


def open_consoles(loop: asyncio.AbstractEventLoop) -> tuple[Console, Console]:
    """Consoles for stdout and stderr: one and the same where both lead to the same place."""
    err = Console(loop, 2)
    out = Console(loop, 1, partial(_say_lost, err))
    try:
        a, b = os.fstat(1), os.fstat(2)
        same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) and not stat.S_ISREG(a.st_mode)
    except OSError:
        same = False
    return out, out if same else err


def _say_lost(err: Console, why: str) -> None:
    err.line(b"", f"aiodist: stdout cannot be written ({why}); what follows there is lost".encode())


class Relay:
    """A relay of one stream of one worker.

    Args:
        loop: the agent's loop.
        fd: the read end of the worker's pipe; owned from here on.
        console: where its lines go, None: nowhere.
        prefix: what stands before each line there, with colours; `prefix_width` its columns.
        file: a file that gets the bytes as they are, None: none; owned from here on.
        most: bytes that the file has at most: it is emptied then; None: as many as there are.
        words: keeps the end of the stream, None: not needed.
        show: shows whole lines in the console's place, None: the console does. It is given what is before
            each, and the lines.
        settle: has what `show` holds back shown.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        *,
        console: Console | None,
        prefix: bytes = b"",
        prefix_width: int = 0,
        file: int | None = None,
        most: int | None = None,
        words: LastWords | None = None,
        show: Callable[[bytes, Sequence[bytes]], None] | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._console = console
        self._prefix = prefix
        self._prefix_width = prefix_width
        self._file = file
        self._most = most
        self._filed = 0
        self._words = words
        self._show_lines = show
        self._settle = settle
        self._splitter = LineSplitter(in_place=bool(console and console.is_terminal))
        self._open = True
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def finish(self) -> None:
        """Take what is still in the pipe of a worker that has ended, and let go of it.

        A process that the worker left behind may hold the other end open for ever, so this does not
        wait for the end of the stream.
        """
        taken = 0
        while self._open and taken < _PIPE_CAPACITY:
            size = self._take()
            if size == 0:
                break
            taken += size
        self._close()

    def _readable(self) -> None:
        self._take()
        if self._open and self._console is not None and self._console.full:
            self._loop.remove_reader(self._fd)
            self._console.when_room(self._resume)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._fd, self._readable)

    def _take(self) -> int:
        """Read once; the number of bytes, 0: nothing there now."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._close()
            return 0
        if self._file is not None:
            self._store(data)
        self._show(self._splitter.feed(data))
        return len(data)

    def _show(self, pieces: Sequence[Piece]) -> None:
        for live, run in groupby(pieces, key=attrgetter("live")):
            texts = [piece.text for piece in run]
            if self._words is not None and not live:
                self._words.add(*texts)
            if self._console is None:
                continue
            if live:
                self._settle()
                columns = max(1, terminal_columns() - self._prefix_width - 1)
                self._console.live_line(self._prefix, texts[-1], columns)
            elif self._show_lines is not None:
                self._show_lines(self._prefix, texts)
            else:
                self._console.line(self._prefix, *texts)

    def _store(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        self._filed += len(data)
        try:
            if self._most is not None and self._filed > self._most:
                os.ftruncate(self._file, 0)
                self._filed = len(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.close(self._file)
            self._file = None
            if self._console is not None:
                self._console.line(self._prefix, f"aiodist run: its log file ends here: {error}".encode())

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._show(self._splitter.finish())
        if self._file is not None:
            os.close(self._file)
            self._file = None


def terminal_columns() -> int:
    """Columns of the terminal behind stderr."""
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
