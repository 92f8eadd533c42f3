"""What is mended, and how often: the decisions, and the law that every job ends."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.launch.restarts import QUICK, After, Cover, Mend, RestartDelay, Scene, after, mend, ready, stays
from aiodist.launch.supervisor import Away, Back, Ended, Over, Send, Supervisor, Tick, Wake
from aiodist.launch.verdict import Ending, NodeReport, Verdict, judge
from tests.levels import COSTLY

SCENE = Scene(
    elastic=True,
    over=False,
    others_live=True,
    others_well=False,
    outside=False,
    may_restart=True,
    go_on=False,
)


@pytest.mark.parametrize(
    ("changes", "choice"),
    [
        ({}, Mend.RESTART),
        ({"elastic": False}, Mend.END),
        ({"may_restart": False}, Mend.END),
        ({"may_restart": False, "go_on": True}, Mend.FORGIVE),
        ({"elastic": False, "go_on": True}, Mend.FORGIVE),
        ({"others_live": False}, Mend.END),
        ({"others_live": False, "others_well": True}, Mend.END),
        ({"others_live": False, "others_well": True, "outside": True}, Mend.FORGIVE),
        ({"others_live": False, "others_well": True, "outside": True, "elastic": False}, Mend.END),
        ({"others_live": False, "outside": True}, Mend.END),
        ({"over": True}, Mend.END),
        ({"over": True, "outside": True}, Mend.FORGIVE),
        ({"over": True, "outside": True, "elastic": False}, Mend.END),
        ({"outside": True}, Mend.RESTART),
    ],
)
def test_mend(changes: dict[str, bool], choice: Mend) -> None:
    assert mend(replace(SCENE, **changes)) is choice


def ending(rank: int, code: int, **more: object) -> Ending:
    return Ending(rank, rank, 0, "h", 100 + rank, code, rank, **more)  # type: ignore[arg-type]


def test_after() -> None:
    stopped = ending(0, -signal.SIGTERM, asked=signal.SIGTERM)
    well, failed = Verdict(0, endings=(ending(0, 0),)), Verdict(7)
    assert after(well, used=0, limit=3, regroup=False) == After(False)
    assert after(failed, used=2, limit=3, regroup=False) == After(True, costs=True)
    assert after(failed, used=3, limit=3, regroup=False) == After(False, costs=True)
    assert after(Verdict(143, signum=15), used=0, limit=3, regroup=True) == After(False)
    assert after(Verdict(2, error="no"), used=0, limit=3, regroup=False) == After(False)
    assert after(Verdict(0, endings=(stopped,)), used=3, limit=3, regroup=True) == After(True)
    assert after(well, used=0, limit=3, regroup=True) == After(False), "it was over before the news came"


def test_backoff_doubles_while_it_fails_at_once() -> None:
    backoff = RestartDelay()
    assert [backoff.delay(1.0) for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [backoff.delay(QUICK), backoff.delay(1.0), backoff.delay(1.0)] == [0, 0, 0.5]


def test_a_symptom_comes_back_on_the_restart_of_its_cause() -> None:
    cover = Cover()
    assert not cover.covers(0, symptom=True, used=0), "nothing was restarted yet"
    assert not cover.covers(0, symptom=False, used=1)
    assert cover.covers(0, symptom=True, used=1)
    assert not cover.covers(0, symptom=True, used=1), "once"
    assert cover.covers(1, symptom=True, used=1)
    assert cover.covers(0, symptom=True, used=2)


def test_ready() -> None:
    def at(count: int, now: float, since: float | None) -> bool:
        return ready(count, now, least=2, most=3, enough_since=since, call=10)

    assert not at(1, 100, None)
    assert not at(2, 109, 100) and at(2, 110, 100)
    assert at(3, 100, 100), "nobody else may come"
    assert not at(1, 110, 100), "somebody has left again"


def test_stays() -> None:
    assert stays((2,), 3, 2, elastic=True, go_on=False)
    assert not stays((1, 2), 3, 2, elastic=True, go_on=False)
    assert not stays((2,), 3, 2, elastic=False, go_on=False)
    assert stays((1, 2), 3, 3, elastic=False, go_on=True)
    assert not stays((0, 1, 2), 3, 1, elastic=True, go_on=True)


class Job:
    """One node's job without processes: the machines, put together as `Crew` and `Head` do."""

    def __init__(self, count: int, limit: int, elastic: bool, go_on: bool) -> None:
        self.count, self.limit, self.elastic, self.go_on = count, limit, elastic, go_on
        self.used = self.starts = self.attempts = 0
        self.cover = Cover()
        self.begin()

    def begin(self) -> None:
        self.attempts += 1
        self.starts += self.count
        self.supervisor = Supervisor(self.count, 30)
        self.endings: list[Ending] = []
        self.over = False
        self.wakes: list[float] = []

    def do(self, event: object, now: float) -> None:
        for action in self.supervisor.handle(event, now):  # type: ignore[arg-type]
            if isinstance(action, Over):
                self.over = True
            elif isinstance(action, Wake):
                self.wakes.append(action.at)
            elif isinstance(action, Send) and action.signum != signal.SIGINT:
                for rank in action.local_ranks:  # all obey
                    self.endings.append(ending(rank, -action.signum, asked=action.signum))
                    self.do(Ended(rank, failed=False), now)

    def end(self, rank: int, code: int, symptom: bool, now: float) -> None:
        """A worker ends by itself."""
        if not code:
            self.endings.append(ending(rank, 0))
            self.do(Ended(rank, failed=False), now)
            return
        self.do(Away(rank), now)
        live = bool(self.supervisor.alive)
        free = live and self.elastic and self.cover.covers(rank, symptom=symptom, used=self.used)
        choice = mend(
            Scene(
                elastic=self.elastic,
                over=False,
                others_live=live,
                others_well=any(e.code == 0 for e in self.endings),
                outside=False,
                may_restart=free or self.used < self.limit,
                go_on=self.go_on,
            )
        )
        if choice is Mend.RESTART and self.supervisor.may_return(rank):
            self.used += not free
            self.starts += 1
            self.endings.append(ending(rank, code, restarted=True))
            self.do(Back(rank), now)
        elif choice is Mend.FORGIVE:
            self.endings.append(ending(rank, code, forgiven=True))
            self.do(Ended(rank, failed=False), now)
        else:
            self.endings.append(ending(rank, code, symptom=symptom))
            self.do(Ended(rank, failed=True, symptom=symptom), now)


@pytest.mark.slow(COSTLY)
@settings(max_examples=200)
@given(st.data(), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_every_job_ends_and_no_restart_is_invented(
    data: st.DataObject, count: int, limit: int, elastic: bool, go_on: bool
) -> None:
    job, now = Job(count, limit, elastic, go_on), 0.0
    bound = count * (1 + limit) * (2 + limit)  # every restart brings back all at most, for nothing too
    while True:
        while not job.over:
            now += 1
            tick: bool = data.draw(st.booleans())
            if job.wakes and tick:
                now = max(now, job.wakes.pop())
                job.do(Tick(), now)
                continue
            rank = data.draw(st.sampled_from(job.supervisor.alive))
            job.end(rank, data.draw(st.sampled_from([0, 1, 7])), data.draw(st.booleans()), now)
            assert job.starts <= bound
        assert job.supervisor.over and not job.supervisor.alive
        verdict = judge([NodeReport(0, "h", tuple(job.endings), 1)])
        step = after(verdict, used=job.used, limit=limit, regroup=False)
        assert job.used <= limit
        if not step.again:
            break
        job.used += step.costs
        assert job.used <= limit
        job.begin()
    last = {e.rank: e for e in job.endings}
    assert len(last) == count, "everybody has an end"
    if verdict.code == 0:
        assert any(e.code == 0 for e in last.values()), "somebody has done the work"
        assert go_on or all(e.code == 0 for e in last.values())
    else:
        assert verdict.culprit is not None and verdict.code == verdict.culprit.exit_code
        assert job.used == limit or not verdict.code
