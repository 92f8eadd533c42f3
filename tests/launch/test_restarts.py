"""What is mended, and how often: the decisions, and the law that every job ends."""

from __future__ import annotations

import signal
from collections.abc import Collection
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


@pytest.mark.parametrize(
    ("facts", "others_live", "others_well", "outside"),
    [
        ({"members": {0, 1, 2}, "live": {1, 2}}, True, False, False),
        ({"members": {0, 1, 2}, "live": {0, 2}}, True, False, False),  # it is not its own other
        ({"members": {0, 1, 2}, "live": set()}, False, False, False),
        ({"members": {0}, "live": {1, 2}}, False, False, False),  # they wait for somebody who admits them
        ({"members": {1}, "live": {1, 2}}, True, False, True),
        ({"members": set(), "live": {1, 2}}, False, False, True),
        ({"members": set(), "left": {0, 1}, "live": {1}}, False, True, False),
        ({"members": {2}, "left": {1}, "live": {1}}, False, True, True),
        ({"members": {0, 1}, "left": {2}, "live": set(), "well": True}, False, True, False),
        ({"members": {1}, "left": {2}, "live": set()}, False, False, True),  # perhaps they have failed since
    ],
)
def test_who_is_a_member(
    facts: dict[str, Collection[int]], others_live: bool, others_well: bool, outside: bool
) -> None:
    found = Scene.of(
        0,
        **{"elastic": True, "over": False, "left": (), "well": False, "go_on": False, **facts},  # type: ignore[arg-type]
    )
    assert (found.others_live, found.others_well, found.outside) == (others_live, others_well, outside)
    assert not found.may_restart


def ending(rank: int, code: int, **more: object) -> Ending:
    return Ending(rank, rank, 0, "h", 100 + rank, code, rank, **more)  # type: ignore[arg-type]


def test_after() -> None:
    stopped = ending(0, -signal.SIGTERM, asked=signal.SIGTERM)
    well, failed = Verdict(0, endings=(ending(0, 0),)), Verdict(7)
    assert after(well, began=0, used=0, limit=3, regroup=False) == After(False)
    assert after(failed, began=0, used=2, limit=3, regroup=False) == After(True, costs=True)
    assert after(failed, began=0, used=3, limit=3, regroup=False) == After(False, costs=True)
    assert after(Verdict(143, signum=15), began=0, used=0, limit=3, regroup=True) == After(False)
    assert after(Verdict(2, error="no"), began=0, used=0, limit=3, regroup=False) == After(False)
    assert after(Verdict(0, endings=(stopped,)), began=0, used=3, limit=3, regroup=True) == After(True)
    assert after(well, began=0, used=0, limit=3, regroup=True) == After(False), (
        "it was over before the news came"
    )
    saved = ending(0, 0, asked=signal.SIGTERM)
    assert after(Verdict(0, endings=(saved,)), began=0, used=0, limit=0, regroup=True) == After(True), (
        "it had not ended its work"
    )
    assert after(Verdict(0, endings=(saved,)), began=0, used=0, limit=0, regroup=False) == After(False)


def test_those_who_die_of_a_death_that_was_mended_begin_again_on_its_restart() -> None:
    symptom = ending(1, 1, symptom=True)
    own = Verdict(1, ending(1, 1), failures=(ending(1, 1), symptom))
    of_another = Verdict(1, symptom, failures=(symptom,))
    node_lost = Verdict(1, None, failures=(symptom,), lost=(1,))
    assert after(of_another, began=0, used=1, limit=1, regroup=False) == After(True)
    assert after(of_another, began=1, used=1, limit=2, regroup=False) == After(True, costs=True), (
        "none was taken"
    )
    for verdict in (own, node_lost):
        assert after(verdict, began=0, used=1, limit=1, regroup=False) == After(False, costs=True)


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
        self.began = self.used
        self.supervisor = Supervisor(self.count, 30)
        self.endings: list[Ending] = []
        self.over = False
        self.wakes: list[float] = []
        self.members: set[int] = set()  # who was admitted, and has not left
        self.left: set[int] = set()
        self.epoch: set[int] = set()  # the last one's members
        self.closed: set[int] = set()  # of these, who have left it in order
        self.failed: dict[int, Ending] = {}  # and what follows is not decided yet
        self.delayed: set[int] = set()  # of these, who are to be started again in a while
        self.undone = False  # the last member has failed

    @property
    def at_work(self) -> set[int]:
        """The members that live."""
        return self.members.intersection(self.supervisor.alive)

    @property
    def done(self) -> bool:
        """Whether all members of the last epoch have left it in order."""
        return bool(self.epoch) and self.closed == self.epoch

    def meet(self) -> None:
        """All living members go on in the next epoch, with all that wait for it; or all begin the first."""
        alive = set(self.supervisor.alive)
        if self.at_work and not self.done:
            self.epoch = alive - self.left
        elif not self.epoch and len(alive) == self.count:
            self.epoch = alive
        else:
            return
        self.members |= self.epoch
        self.closed = set()

    def leave(self, rank: int) -> None:
        """A member leaves the group in order, and goes on alone."""
        if rank in self.members:
            self.members.discard(rank)
            self.left.add(rank)
            self.closed.add(rank)

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
            self.leave(rank)
            self.endings.append(ending(rank, 0))
            self.do(Ended(rank, failed=False), now)
            return
        worked = rank in self.members or rank in self.left
        self.do(Away(rank), now)
        self.undone = self.undone or (worked and not self.at_work)
        self.failed[rank] = ending(rank, code, symptom=symptom)
        if not self.supervisor.may_return(rank):
            self.decide(rank, False, now)

    def decide(self, rank: int, delay: bool, now: float) -> None:
        """The launcher decides what follows a failure, perhaps long after it."""
        failure, again = self.failed[rank], rank in self.delayed
        scene = Scene.of(
            rank,
            elastic=self.elastic and bool(self.epoch),
            over=self.done,
            members=self.members,
            left=self.left,
            live=self.supervisor.alive,
            well=any(e.code == 0 for e in self.endings),
            go_on=self.go_on,
        )
        free = False
        if again:
            choice = mend(replace(scene, may_restart=True, outside=True))
        else:
            free = scene.others_live and scene.elastic
            free = free and self.cover.covers(rank, symptom=failure.symptom, used=self.used)
            choice = mend(replace(scene, may_restart=free or self.used < self.limit))
        if choice is Mend.RESTART and self.supervisor.may_return(rank):
            if not again:
                self.used += not free
                if delay:
                    self.delayed.add(rank)
                    return
            self.starts += 1
            self.members.discard(rank)
            self.left.discard(rank)
            self.endings.append(replace(failure, restarted=True))
            self.do(Back(rank), now)
        elif choice is Mend.FORGIVE and self.supervisor.may_return(rank):
            self.endings.append(replace(failure, forgiven=True))
            self.do(Ended(rank, failed=False), now)
        else:
            self.endings.append(failure)
            self.do(Ended(rank, failed=True, symptom=failure.symptom), now)
        del self.failed[rank]
        self.delayed.discard(rank)


@pytest.mark.slow(COSTLY)
@settings(max_examples=300)
@given(st.data(), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_every_job_ends_and_no_restart_or_success_is_invented(
    data: st.DataObject, count: int, limit: int, elastic: bool, go_on: bool
) -> None:
    job, now = Job(count, limit, elastic, go_on), 0.0
    bound = count * (1 + limit) * (2 + limit)  # every restart brings back all at most, for nothing too
    while True:
        for step in range(10**6):
            if job.over:
                break
            now += 1
            alive, failed = job.supervisor.alive, sorted(job.failed)
            steps = ["tick"] * bool(job.wakes) + ["decide"] * bool(failed)
            steps += ["end", *(["meet", "leave"] if step < 40 else [])] if alive else []
            what = data.draw(st.sampled_from(steps))
            if what == "tick":
                now = max(now, job.wakes.pop())
                job.do(Tick(), now)
            elif what == "decide":
                job.decide(data.draw(st.sampled_from(failed)), data.draw(st.booleans()), now)
            elif what == "meet":
                job.meet()
            elif what == "leave":
                job.leave(data.draw(st.sampled_from(alive)))
            else:
                code: int = data.draw(st.sampled_from([0, 1, 7]))
                job.end(data.draw(st.sampled_from(alive)), code, data.draw(st.booleans()), now)
            assert job.starts <= bound
        assert job.supervisor.over and not job.supervisor.alive
        for failure in job.failed.values():
            job.endings.append(failure)
        verdict = judge([NodeReport(0, "h", tuple(job.endings), 1)])
        step_after = after(verdict, began=job.began, used=job.used, limit=limit, regroup=False)
        assert job.used <= limit
        if not step_after.again:
            break
        job.used += step_after.costs
        assert job.used <= limit
        job.begin()
    last = {e.rank: e for e in job.endings}
    assert len(last) == count, "everybody has an end"
    if verdict.code == 0:
        assert any(e.code == 0 for e in last.values()), "somebody has done the work"
        assert go_on or not job.undone, "its last members have ended it"
        assert go_on or elastic or all(e.code == 0 for e in last.values())
    else:
        assert verdict.culprit is not None and verdict.code == verdict.culprit.exit_code
        assert job.used == limit or not verdict.code
