"""What each rank does for those who look at its job: it writes down how it goes, and one rank of each host
judges where something stands still.

All of it runs in the watchdog's thread, ten times a second: also while the loop is blocked. The rank that
judges is the lowest of its host whose process writes; so the next one judges a held or stopped process. That
one glances at all ranks of its host once a second; each other one at a lower one, for as long as that writes.

What lasts is said once. What happens again at the same line of the program, to the same ranks, is said again
when it has lasted for twice as long as when it was said last: a stage of a pipeline may take its time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from aiodist.net.traffic import Traffic
from aiodist.observe.ask import ask
from aiodist.observe.box import render
from aiodist.observe.clocks import place
from aiodist.observe.exchange import ViewExchange
from aiodist.observe.host import read_ranks
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.reading import Glance, glance
from aiodist.observe.recorder.records import Memory, glance_at, glances, open_folder
from aiodist.observe.verdict import Verdict, judge, judge_quickly
from aiodist.observe.view import SIGN, Doing, RankView, jobs

EVERY = 1.0  # seconds from look to look at the others
SLOWLY = 60.0  # seconds from look to look for a rank that is always late, and for other ranks' calls
SOME = 512  # places of each recorder that are read for it; all, once there is something to say

MOST_SAID = 1000
"""Verdicts that are remembered so as not to be given again, the last ones."""

_log = logging.getLogger("aiodist.observe")


class Watcher:
    """One process's part in what is seen of its job.

    Args:
        recorder: the process's.
        memory: its memory.
        key: of the job.
        after: seconds for which an operation is pending before the job counts as standing still; 0.0: nothing
            is ever said.
        answer: answers others who ask what this process does, if anybody does.
        exchange: by which other hosts are asked.
        calls: gives what is under way at the services of this process, at a time; None: there are none.
    """

    def __init__(
        self,
        recorder: Recorder,
        memory: Memory,
        key: str,
        after: float,
        *,
        answer: Callable[[], object],
        exchange: ViewExchange,
        calls: Callable[[float], dict[str, Any] | None] = lambda now: None,
    ) -> None:
        self._recorder = recorder
        self._memory = memory
        self._lower = ""  # the file of a rank that judges, or is nearer to it than this one
        self._key = key
        self._after = after
        self._answer = answer
        self._exchange = exchange
        self._calls = calls
        self._calls_written: dict[str, Any] | None = None
        self._due = self._judge_due = self._slow_due = 0.0
        self._said: dict[str, str] = {}  # the kinds of what has been said, by what it is about
        self._patience: dict[str, float] = {}  # by the place of a verdict: for how long it has to hold
        self._judging: threading.Thread | None = None

    def beat(self, turns: int, traffic: Callable[[], list[tuple[int, Traffic]]], every: float) -> None:
        """Write down how this process goes; look at the others where it is time. Called ten times a second.

        Args:
            turns: beats of the loop.
            traffic: says how the connections go.
            every: seconds from beat to beat.
        """
        self._recorder.beat(turns, every)
        self._recorder.flush()
        self._answer()
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY
        self._recorder.links(traffic())
        self._tell_of_calls(now)
        with contextlib.suppress(OSError):
            self._watch_others(now)

    def _tell_of_calls(self, now: float) -> None:
        with contextlib.suppress(RuntimeError):  # something has changed meanwhile
            calls = self._calls(now)
            if calls is None or (self._calls_written is None and not any(calls.values())):
                return  # most programs call nobody
            if calls != self._calls_written:
                self._recorder.tell(calls=calls)
                self._calls_written = calls

    def _watch_others(self, now: float) -> None:
        me = glance(self._memory.buffer)
        with open_folder() as folder:
            if self._lower and _judges(glance_at(folder, self._lower), me, now):
                return
            seen = {name: one for name, one in glances(folder, self._key) if one.size and not one.left}
        self._lower = next((name for name, one in seen.items() if _judges(one, me, now)), "")
        if self._lower or self._memory.name not in seen:
            return  # another rank of this host does it
        if len({one.rank for one in seen.values()}) < me.size:
            self._exchange.poll()
        self._slow_due = self._slow_due or now + SLOWLY
        oldest = min(
            time for one in seen.values() for time in (one.flushed, one.turned, one.oldest, now) if time
        )
        for _, _, since, *_ in (self._calls_written or {}).get("to", ()):
            oldest = min(oldest, since)
        stands = now - oldest >= self._after and now >= self._judge_due
        if self._after and (stands or now >= self._slow_due):
            self._judge_due = now + max(EVERY, self._after / 3)  # it may stand still for long
            self._slow_due = now + SLOWLY
            if self._judging is None or not self._judging.is_alive():  # apart: who is asked answers meanwhile
                self._judging = threading.Thread(
                    target=self._judge, args=(me.rank, stands), name="aiodist verdict", daemon=True
                )
                self._judging.start()

    def _judge(self, me: int, stands: bool) -> None:
        try:
            if stands:
                self.judge(me)
            else:
                self._judge_quickly(me)
        except Exception:  # it is no reason to disturb the job
            _log.debug("whether the job stands still cannot be said", exc_info=True)

    def _judge_quickly(self, me: int) -> None:
        """Look quickly whether calls of any ranks wait for each other, or something makes the job slow.

        Of other hosts the host of rank 0 asks, for all.
        """
        views = read_ranks(self._key, most=SOME)
        if not views:
            return
        if self._fresh(judge_quickly(jobs(views)[0], self._after)):
            self.judge(me)
        elif _has_others(views) and any(view.rank == 0 for view in views):
            views = self._exchange.gather(views, SOME, stacks=False)
            self._tell(self._fresh(judge_quickly(place(jobs(views)[0]), self._after)), speaks=True)

    def judge(self, me: int) -> None:
        """Look closely, and say what is the matter where that has not been said.

        Args:
            me: this rank.
        """
        views = read_ranks(self._key)
        found = self._verdicts(views)
        if not found:  # what is over may come again; a straggler comes and goes
            self._said = {about: kind for about, kind in self._said.items() if kind == "straggler"}
        if not self._fresh(found):
            return
        if _has_others(views):
            views = self._exchange.gather(views)
        culprits = {rank for verdict in self._fresh(self._verdicts(views)) for rank in verdict.ranks}
        views = ask(views, only=culprits)
        self._tell(self._fresh(self._verdicts(views)), self._speaks(views, me))

    def _tell(self, verdicts: list[Verdict], speaks: bool) -> None:
        """Remember verdicts, and give them where this host `speaks` for all."""
        for verdict in verdicts:
            self._said[verdict.about] = verdict.kind
            if len(self._said) > MOST_SAID:
                del self._said[next(iter(self._said))]
            if verdict.place:
                self._patience[verdict.place] = 2 * max(verdict.seconds, self._after)
                if len(self._patience) > MOST_SAID:
                    del self._patience[next(iter(self._patience))]
            if speaks:
                _log.warning("%s", render(verdict))

    def _speaks(self, views: list[RankView], me: int) -> bool:
        """Whether this host speaks for all: that of the lowest rank that waits, as all of them see it."""
        waiting = [view for view in views if view.doing is Doing.waiting]
        first = min(waiting or views, key=lambda view: view.rank)
        return first.host == next((view.host for view in views if view.rank == me), first.host)

    def _verdicts(self, views: list[RankView]) -> tuple[Verdict, ...]:
        return judge(place(jobs(views)[0]), self._after) if views else ()

    def _fresh(self, verdicts: tuple[Verdict, ...]) -> list[Verdict]:
        return [
            verdict
            for verdict in verdicts
            if verdict.about not in self._said and verdict.seconds >= self._patience.get(verdict.place, 0.0)
        ]


def _has_others(views: list[RankView]) -> bool:
    """Whether there are ranks that are not among these."""
    return len({view.rank for view in views}) < max(view.recording.size for view in views)


def _judges(one: Glance | None, me: Glance, now: float) -> bool:
    """Whether a rank of this host is to judge before this one."""
    if one is None or not one.size or one.left:
        return False
    return one.rank < me.rank and one.flushed > now - SIGN
