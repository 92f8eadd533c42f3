"""Asking the ranks of this host what they do, all at once; see `answer`, which answers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from aiodist.observe.fault import catches, parse, send
from aiodist.observe.frames import FrameCall, beside, telling
from aiodist.observe.host import host_name
from aiodist.observe.question import put, put_before
from aiodist.observe.recorder.records import FAULT, STACKS, Folders, Name, is_alive, name_of, open_folder
from aiodist.observe.view import Doing, RankView, Stacks

PATIENCE = 1.5
"""Seconds to wait for an answer: processes look for questions ten times a second."""

_PAUSE = 0.01
_MOST = 4 << 20  # bytes of an answer that are read
_MOST_THREADS = 1 << 22  # the kernel numbers no more
_UNCHANGED = 5  # looks at a file that does not grow any more


def ask(
    views: Iterable[RankView], patience: float = PATIENCE, *, only: Container[int] | None = None
) -> list[RankView]:
    """Ask ranks what they do → their views with `stacks`, in the same order.

    Those that cannot answer by themselves are made to by a signal. Without `stacks` stay the dead, the
    stopped, those of other hosts, and those that have no file.

    Args:
        patience: seconds to wait for answers.
        only: the ranks that are asked; None: all.
    """
    views = list(views)
    asked: dict[int, _Asked] = {}
    try:
        folder = open_folder()
    except OSError:
        return views
    with folder:
        for place, view in enumerate(views):
            wanted = only is None or view.rank in only
            here = view.host == host_name() and view.alive and not view.stopped
            if wanted and here and not view.recording.left:
                found = name_of(folder, view.key, view.recording.pid, view.recording.began)
                if found is not None:
                    with contextlib.suppress(OSError):
                        asked[place] = _Asked(folder, view, found)
        _wait_for([one for one in asked.values() if one.view.doing is not Doing.held], patience)
        silent = [one for one in asked.values() if not one.answered() and one.signal()]
        _wait_for_files(silent, patience)
        return [
            replace(view, stacks=asked[place].stacks()) if place in asked else view
            for place, view in enumerate(views)
        ]


class _Asked:
    """One process that is asked.

    Args:
        folder: of the recorders.
        view: of the rank.
        name: of its recorder's file.
    """

    def __init__(self, folder: Folders, view: RankView, name: Name) -> None:
        self.view = view
        self._folder = folder
        self._name = str(name)
        self._read_from = 0
        self._answer: Stacks | None = None
        self._question = put(folder, self._name)

    def answered(self) -> bool:
        """Whether it has answered."""
        if self._answer is None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                if put_before(self._folder, self._name) != self._question:
                    answer = json.loads(self._read(STACKS))
                    if list(self._question) in answer["questions"]:
                        self._answer = Stacks.from_json({**answer, "by_signal": False})
        return self._answer is not None

    def signal(self) -> bool:
        """Make it write what it does → whether that was possible."""
        about = self.view.recording.about
        number, watcher = (_number(about.get(name)) for name in ("signal", "watcher"))
        watcher = watcher if 0 < watcher <= _MOST_THREADS else 0
        pid = self.view.recording.pid
        try:
            self._read_from = self.written()
            alive = self.view.near and is_alive(self._folder, self._name)
            if not alive or not catches(pid, number):
                return False
            send(pid, watcher, number)
        except OSError:
            return False
        return True

    def written(self) -> int:
        """Bytes that it has written at signals so far."""
        return self._folder.size(self._name + FAULT)

    def wrote(self) -> int:
        """Bytes that it has written at this signal."""
        with contextlib.suppress(OSError):
            return self.written() - self._read_from
        return 0

    def stacks(self) -> Stacks | None:
        """What it has said."""
        try:
            return self._answer if self.answered() else self._fault()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _fault(self) -> Stacks | None:
        threads = parse(self._read(FAULT, self._read_from).decode(errors="replace")) if self.wrote() else []
        if not threads:
            return None
        wanted = _number(self.view.recording.about.get("thread"))
        calls: dict[int, list[FrameCall]] = {}
        for one in threads:  # the first is whole; others may ask, too, and the last is being written
            calls.setdefault(one.thread, one.calls)
        first = calls.pop(wanted, [])
        return Stacks(telling(first), by_signal=True, others=beside(calls))

    def _read(self, end: str, start: int = 0) -> bytes:
        with os.fdopen(self._folder.file(self._name + end), "rb") as file:
            file.seek(start)
            return file.read(_MOST)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _wait_for(asked: list[_Asked], patience: float) -> None:
    """Wait until all have answered, or the time is over."""
    until = time.monotonic() + patience
    while not all(one.answered() for one in asked) and time.monotonic() < until:
        time.sleep(_PAUSE)


def _wait_for_files(asked: list[_Asked], patience: float) -> None:
    """Wait until the files of all have grown, and grow no more, or the time is over."""
    until = time.monotonic() + patience
    sizes, unchanged = [0] * len(asked), 0
    while asked and unchanged < _UNCHANGED and time.monotonic() < until:
        time.sleep(_PAUSE)
        now = [one.wrote() for one in asked]
        unchanged = unchanged + 1 if now == sizes and all(now) else 0
        sizes = now
