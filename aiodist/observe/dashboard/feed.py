"""What a job does, looked at once a second, and made ready for all pages at once.

Looking takes a tenth of one core at most: where it costs more, it is done less often. Judging, which costs
most, takes a fiftieth of one core at most.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from aiodist.observe.clocks import place
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.history import History
from aiodist.observe.outcome import Outcome
from aiodist.observe.page import Page, change, page, whole
from aiodist.observe.summary import Summary, summary
from aiodist.observe.verdict import AFTER, Verdict, judge
from aiodist.observe.view import JobView, RankView, Stacks

EVERY = 1.0
"""Seconds from look to look."""

SHARE = 0.1  # of a core that looking may take
_JUDGING = 0.02  # and judging
_MOST_CULPRITS = 16

Read = Callable[[], Awaitable[tuple[JobView | None, str]]]
Ended = Callable[[JobView], "tuple[JobView | None, Outcome] | None"]
Asks = Callable[[Iterable[RankView]], list[RankView]]


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """The state that all pages are sent.

    Args:
        version: counts up.
        change: from the version before, as JSON.
    """

    version: int
    change: bytes


class Feed:
    """A job's present state, for all who watch it.

    Args:
        read: gives the job as it is, None: it is not there (any more).
        logs: of its ranks.
        ask: has ranks say what they do.
        ended: of a job that is gone, what its ranks have left, and its launcher's word; None: there is none.
        after: seconds for which something is pending before it is judged.
        launched: a launcher says when the job has ended (`over`): until then its ranks may come again.
        now: the time of day.

    Attributes:
        before, now: the last two views; None: not seen.
        ended: the job has gone.
    """

    def __init__(
        self,
        read: Read,
        logs: Logs,
        *,
        ask: Asks,
        ended: Ended = lambda job: None,
        after: float = AFTER,
        launched: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._logs = logs
        self._ask = ask
        self._ended = ended
        self._after = after
        self._time = now
        self._launched = launched
        self._history = History()
        self._verdicts: tuple[Verdict, ...] = ()
        self._judge_due = self._judged = 0.0
        self._stacks: dict[str, dict[tuple[str, int, float], Stacks]] = {}
        self._page = Page({"state": "waiting", "wall": self._time()}, {})
        self._update = PageUpdate(0, b"{}")
        self._whole: tuple[int, bytes] = (-1, b"")
        self._news = asyncio.Condition()
        self._closed = False
        self._error = ""
        self._last_words: JobView | None = None
        self._outcome: Outcome | None = None
        self.code: int | None = None
        self.before: JobView | None = None
        self.now: JobView | None = None
        self.summary: Summary | None = None
        self.ended = False
        self.placed: JobView | None = None

    @property
    def version(self) -> int:
        """The number of the present state."""
        return self._update.version

    @property
    def closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._closed

    def whole(self) -> tuple[int, bytes]:
        """The present state's number, and all of it, as JSON."""
        if self._whole[0] != self.version:
            self._whole = self.version, _encoded(whole(self._page))
        return self._whole

    async def next(self, version: int) -> PageUpdate | None:
        """The state after `version`, once it is there; None: nothing comes any more."""
        async with self._news:
            await self._news.wait_for(lambda: self._closed or self.version > version)
            return None if self._closed else self._update

    async def run(self) -> None:
        """Look again and again."""
        while True:
            began, cost = time.monotonic(), time.process_time()
            self._judged = 0.0
            await self.step()
            cost = time.process_time() - cost - self._judged
            elapsed = time.monotonic() - began
            await asyncio.sleep(max(0.0, EVERY - elapsed, cost / SHARE - elapsed))

    async def step(self) -> None:
        """Look once."""
        job, self._error = await self._read()
        await asyncio.to_thread(self._take, job)
        await self._tell()

    async def over(self, code: int, dump: JobView | None, outcome: Outcome | None = None) -> None:
        """The job has ended.

        Args:
            code: its exit code.
            dump: what its ranks did last, where that was kept.
            outcome: what its launcher says; None: nothing has failed.
        """
        self.code, self._last_words, self._outcome = code, dump, outcome
        await self.step()

    async def close(self) -> None:
        """Nothing comes any more."""
        async with self._news:
            self._closed = True
            self._news.notify_all()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _take(self, job: JobView | None) -> None:
        """Take in a view; in a thread."""
        if job is None and self.now is not None and self.code is None:
            self._look_back(self.now)
        if self.now is not None and (self.code is not None or job is None):
            job = self._final(job, self.now)
            self.ended = True
        elif job is not None:
            self.ended = False  # it has begun again
        wall = self._time()
        more: dict[str, Any] = {
            "state": self._state(job),
            "code": self.code,
            "wall": round(wall, 1),
            "error": self._error,
        }
        if job is None:
            self._logs.see(())
            self._show(Page({**more, "logs": self._logs.to_json()}, {}))
            return
        self._history.see(job, wall)
        self._logs.see(job.ranks)
        if self.ended and self._outcome is not None:
            self._verdicts = (self._outcome.verdict,) if self._outcome.code else ()
        else:
            self._judge(job)
        self.before, self.now = self.now, job
        self.placed = place(job) if len(job.hosts) > 1 else job
        self.summary = summary(self.before, job, self._verdicts)
        self._show(page(self.summary, self._history.entries, logs=self._logs.to_json(), **more))

    def _look_back(self, last: JobView) -> None:
        """See whether the launcher of a job that has gone has said how it ended."""
        found = self._ended(last)
        if found is not None:
            self._last_words, self._outcome = found
            self.code = self._outcome.code

    def _state(self, job: JobView | None) -> str:
        if job is None or (self.ended and self._launched and self.code is None):
            return "waiting"  # for the first attempt, or the next one
        return "ended" if self.ended else "live"

    def _final(self, job: JobView | None, last: JobView) -> JobView:
        """The ranks as they were seen last, or as they left it written down."""
        known = {view.rank: view for view in last.ranks}
        known |= {view.rank: view for view in job.ranks} if job is not None else {}
        if self._last_words is not None and self._last_words.key == last.key:
            known |= {view.rank: view for view in self._last_words.ranks}
        elif job is None or self.code == 0:
            known = {rank: _left(view) for rank, view in known.items()}
        return JobView(last.key, tuple(known[rank] for rank in sorted(known)))

    def _judge(self, job: JobView) -> None:
        now = time.monotonic()
        if now < self._judge_due or not self._after:
            return
        cost = time.thread_time()
        verdicts = judge(job, self._after)
        fresh = [one for one in verdicts if one.about not in self._stacks and one.kind != "straggler"]
        if fresh:  # as the job's own box has it, with what the culprits do
            culprits = {rank for one in fresh for rank in one.ranks[:_MOST_CULPRITS]}
            asked = self._ask([view for view in job.ranks if view.rank in culprits])
            stacks = {one.identity: one.stacks for one in asked if one.stacks is not None}
            self._stacks.update((one.about, stacks) for one in fresh)
        if known := [self._stacks[one.about] for one in verdicts if one.about in self._stacks]:
            verdicts = judge(JobView(job.key, tuple(_with_stacks(job.ranks, known))), self._after)
        self._stacks = {one.about: self._stacks.get(one.about, {}) for one in verdicts}
        self._verdicts = verdicts
        self._judged = time.thread_time() - cost
        self._judge_due = now + self._judged / _JUDGING

    def _show(self, fresh: Page) -> None:
        changed = _encoded(change(self._page, fresh))
        self._page = fresh
        self._update = PageUpdate(self.version + 1, changed)


def _left(view: RankView) -> RankView:
    """A rank whose record has gone: it has left, as it would have been seen a moment later."""
    recording = view.recording
    if recording.left or not view.alive:
        return view
    return replace(view, recording=replace(recording, left=view.now, pending=()))


def _with_stacks(
    views: Sequence[RankView], known: Sequence[dict[tuple[str, int, float], Stacks]]
) -> Iterable[RankView]:
    for view in views:
        for stacks in known:
            if view.identity in stacks:
                yield replace(view, stacks=stacks[view.identity])
                break
        else:
            yield view


def _encoded(value: Any) -> bytes:
    with suppress(ValueError):
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    """A value with None for each number that is not finite: a rank's memory may hold anything."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
