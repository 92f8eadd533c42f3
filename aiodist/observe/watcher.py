"""What each rank does for those who look at its job: it writes down how it goes, and one rank of each host
judges where something stands still.

All of it runs in the watchdog's thread, ten times a second: also while the loop is blocked. The rank that
judges is the lowest of its host whose process writes; so the next one judges a held or stopped process.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from aiodist.observe.box import render
from aiodist.observe.host import look
from aiodist.observe.verdict import Verdict, judge
from aiodist.observe.view import SIGN, RankView, jobs
from aiodist.recorder import Recorder
from aiodist.shm.records import Memory, glances, open_folder

EVERY = 1.0  # seconds from look to look at the others
SLOWLY = 60.0  # seconds from look to look for a rank that is always late: all that is recorded is read for it

_log = logging.getLogger("aiodist.observe")

Gather = Callable[[list[RankView]], list[RankView]]
"""Adds the views of other hosts to those of this one. It may block for seconds; it runs in a thread."""


class Watcher:
    """One process's part in what is seen of its job.

    Args:
        recorder: the process's.
        memory: its memory.
        key: of the job.
        after: seconds for which an operation is pending before the job counts as standing still; 0.0: nothing
            is ever said.
        gather: for a job that has other hosts; None: it has none.
        ask: has processes say what they do (`ask.ask`).
    """

    def __init__(
        self,
        recorder: Recorder,
        memory: Memory,
        key: str,
        after: float,
        gather: Gather | None = None,
        ask: Gather = lambda views: views,
    ) -> None:
        self._recorder = recorder
        self._name = memory.name
        self._key = key
        self._after = after
        self._gather = gather
        self._ask = ask
        self._due = self._slow_due = 0.0
        self._told: set[str] = set()

    def look(self, turns: int, every: float) -> None:
        """Write down how this process goes; look at the others where it is time. Called ten times a second.

        Args:
            turns: beats of the loop.
            every: seconds from beat to beat.
        """
        self._recorder.beat(turns, every)
        self._recorder.flush()
        now = time.monotonic()
        if not self._after or now < self._due:
            return
        self._due = now + EVERY
        if not self._slow_due:
            self._slow_due = now + SLOWLY
        with contextlib.suppress(OSError):
            oldest = self._oldest(now)
            if oldest is not None and (now - oldest >= self._after or now >= self._slow_due):
                self._slow_due = now + SLOWLY
                self.judge()
                self._due = now + max(EVERY, self._after / 3)  # it may stand still for long

    def _oldest(self, now: float) -> float | None:
        """The time from which on something on this host has stood still, if anything has; None: another rank
        of this host is to judge."""
        oldest, lower = now, False
        with open_folder() as folder:
            seen = list(glances(folder, self._key))
        mine = [one.rank for name, one in seen if name == self._name]
        for _, one in seen:
            if not one.size or one.left:
                continue
            lower = lower or (one.rank < min(mine, default=0) and one.flushed > now - SIGN)
            oldest = min([oldest, *(time for time in (one.flushed, one.turned, one.oldest) if time)])
        return None if lower or not mine else oldest

    def judge(self) -> tuple[Verdict, ...]:
        """Look closely, and say what is the matter where that has not been said → all verdicts."""
        views = look(self._key)
        verdicts = self._verdicts(views)
        if self._fresh(verdicts) and self._gather is not None:
            views = self._gather(views)
            verdicts = self._verdicts(views)
        if self._fresh(verdicts):
            culprits = {rank for verdict in verdicts for rank in verdict.ranks}
            asked = {view.rank: view for view in self._ask([view for view in views if view.rank in culprits])}
            verdicts = self._verdicts([asked.get(view.rank, view) for view in views])
        for verdict in self._fresh(verdicts):
            self._told.add(verdict.about)
            _log.warning("%s", render(verdict))
        return verdicts

    def _verdicts(self, views: list[RankView]) -> tuple[Verdict, ...]:
        return judge(jobs(views)[0], self._after) if views else ()

    def _fresh(self, verdicts: tuple[Verdict, ...]) -> list[Verdict]:
        return [verdict for verdict in verdicts if verdict.about not in self._told]
