"""Ranks that record in this process, in a folder that stands for shared memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiodist.base.environment.clock import clock_id
from aiodist.observe.recorder import Recorder, Track, records
from aiodist.observe.recorder.recorder import Pending
from aiodist.observe.recorder.records import Memory
from tests.observe.recorder.made import a_call

KEY = "0123456789ab"


class Rank:
    """A rank of two, unless more are said, and its recorder's file.

    Args:
        rank, size: of the job.
        key: of the job.
        about: what it tells.
    """

    def __init__(self, rank: int = 0, size: int = 2, key: str = KEY, **about: Any) -> None:
        self.behind = 0.0  # seconds by which its clock is behind, so that things happened earlier
        self.memory = Memory(key)
        self.recorder = Recorder(self.memory.buffer, os.getpid(), self._clock, time.time())
        self.recorder.tell(**{"argv": ["train.py"], "clock": clock_id(), "job": "j", **about})
        if size:
            self.recorder.take_part(rank, size, 0)
        self.track: Track = self.recorder.track("world", 0, range(max(1, size)))
        self.flush()

    def _clock(self) -> float:
        return time.monotonic() - self.behind

    def flush(self, behind: float = 0.0) -> None:
        """Write, as so many seconds ago."""
        self.behind = behind
        self.recorder.beat(self.recorder._turns + 1, 0.25)
        self.recorder.flush()
        self.behind = 0.0

    def wait(self, number: int = 0, seconds: float = 60.0) -> Pending:
        """Wait in a collective for so long, until it is ended."""
        self.behind = seconds
        entry = self.track.note(self.track.sort_of(a_call(number)), number, sys._getframe(1))
        pending = self.track.enter(entry)
        self.flush()
        return pending

    def end(self, pending: Pending) -> None:
        """End what it waits in."""
        self.track.end(pending)
        self.flush()


@contextmanager
def recording(folder: Path, patch: Callable[[object, str, object], object]) -> Iterator[Callable[..., Rank]]:
    """Makes ranks, which are let go of at the end."""
    patch(records, "SHARED_MEMORY", folder)
    patch(records, "ELSEWHERE", folder / "elsewhere")  # which is not there
    made: list[Rank] = []

    def make(*args: Any, **more: Any) -> Rank:
        made.append(Rank(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.memory.remove()
        one.memory._let_go()
