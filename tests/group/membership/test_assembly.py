"""The assembly's rules, one by one, and that it always comes to an end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group.membership.assembly import (
    FORMING,
    GRACE,
    OVERTIME,
    Adopt,
    Assembly,
    Fail,
    Form,
    Invite,
    Rule,
    Wait,
)
from aiodist.group.membership.messages import Decided, Draft, Dropped, MemberMessage, Ready, Void
from aiodist.group.membership.record import UID_BYTES, Record

UIDS = [bytes([rank]) * UID_BYTES for rank in range(6)]
NEWCOMER = b"n" * UID_BYTES


def ready(min_size: int = 1, admit: bool = True, wanted: int = 0, excluded: tuple[bytes, ...] = ()) -> Ready:
    return Ready(1, min_size, admit, wanted, excluded)


def assembly(rank: int = 0, size: int = 3, mine: Ready | None = None, deadline: float = 10.0) -> Assembly:
    made = Assembly(1, 0, rank, UIDS[:size])
    made.begin(mine or ready(), deadline)
    return made


def all_ready(made: Assembly, said: Ready | None = None, but: tuple[int, ...] = ()) -> None:
    for rank in range(len(made.uids)):
        if rank not in (made.rank, *but):
            made.hear(rank, said or ready(), 0.0)


def record(*ranks: int, attempt: int = 1, convener: int = 0) -> Record:
    return Record(1, (attempt, convener), tuple(UIDS[rank] for rank in ranks))


# ── rule 1: who convenes, and when ───────────────────────────────────────────────────────────────────────


def test_the_lowest_that_is_not_gone_convenes_when_all_are_ready() -> None:
    made = assembly(1)
    assert made.convener(0.0) == 0
    made.lose(0)
    assert made.convener(0.0) == 1
    assert made.next(0.0) == Wait(10.0)
    made.hear(2, ready(), 0.0)
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.members == (UIDS[1], UIDS[2])
    assert not step.final


def test_at_the_deadline_it_goes_on_with_those_who_are_ready() -> None:
    made = assembly(0)
    made.hear(1, ready(), 0.0)
    assert made.missing() == [2]
    assert made.next(9.9) == Wait(10.0)
    step = made.next(10.0)
    assert isinstance(step, Invite)
    assert step.members == (UIDS[0], UIDS[1])
    assert step.final


def test_a_convener_that_is_not_ready_at_the_deadline_is_passed_over() -> None:
    made = assembly(1)
    made.hear(2, ready(), 0.0)
    assert made.next(9.0) == Wait(10.0)
    assert isinstance(made.next(10.0), Invite)


def test_whoever_is_excluded_is_neither_waited_for_nor_convenes() -> None:
    without = ready(admit=False, excluded=(UIDS[0],))
    made = assembly(1, mine=without)
    assert made.missing() == [2]
    made.hear(2, without, 0.0)
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.members == (UIDS[1], UIDS[2])
    assert step.newcomers == 0


def test_others_wait_for_the_convener_and_not_for_ever() -> None:
    made = assembly(2)
    all_ready(made)
    assert made.next(0.0) == Wait(10.0)
    assert made.next(10.0) == Wait(10.0 + GRACE)
    fail = made.next(10.0 + GRACE)
    assert isinstance(fail, Fail)
    assert fail.quorum
    assert "rank 0" in fail.why


def test_a_convener_that_can_form_nothing_ends() -> None:
    made = assembly(0)
    all_ready(made)
    assert isinstance(made.next(10.0 + OVERTIME - 0.1), Invite)
    fail = made.next(10.0 + OVERTIME)
    assert isinstance(fail, Fail)
    assert fail.quorum


# ── rule 2: what a draft holds ───────────────────────────────────────────────────────────────────────────


def test_min_size_counts_newcomers_where_they_are_admitted() -> None:
    made = assembly(0, mine=ready(min_size=4))
    all_ready(made)
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.wanted == 1
    made = assembly(0, mine=ready(min_size=4, admit=False))
    all_ready(made)
    assert made.next(0.0) == Fail("3 of 3 members are left, 4 are needed", quorum=True)


def test_newcomers_are_admitted_if_all_want_them() -> None:
    made = assembly(0)
    all_ready(made, ready(admit=False))
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.newcomers == 0


def test_growing_waits_for_newcomers_unless_somebody_only_rebuilds() -> None:
    made = assembly(0, mine=ready(wanted=2))
    all_ready(made, ready(wanted=2))
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.wanted == 2
    made = assembly(0, mine=ready(wanted=2))
    all_ready(made, ready())
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.wanted == 0


def test_a_later_draft_takes_the_place_of_an_earlier_one() -> None:
    made = assembly(2)
    made.hear(0, Draft(1, record(0, 1, 2)), 0.0)
    assert made.next(0.0) == Form(record(0, 1, 2))
    made.lose(0)
    later = record(1, 2, attempt=2, convener=1)
    made.hear(1, Draft(1, later), 1.0)
    assert made.next(1.0) == Form(later)
    made.hear(0, Draft(1, record(0, 1, 2)), 1.0)  # late news
    assert made.next(1.0) == Form(later)


def test_a_draft_of_another_epoch_is_none() -> None:
    made = assembly(2)
    made.hear(0, Draft(1, Record(2, (1, 0), tuple(UIDS[:3]))), 0.0)
    assert made.current() is None


# ── rule 3: drafts that cannot be formed ─────────────────────────────────────────────────────────────────


def test_culprits_are_not_in_the_next_draft_and_one_that_accuses_itself_goes_on() -> None:
    made = assembly(0)
    all_ready(made)
    made.hear(0, Draft(1, record(0, 1, 2)), 0.0)
    made.hear(1, Dropped(1, (1, 0), (UIDS[2], UIDS[0]), "no"), 0.0)
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.members == (UIDS[0], UIDS[1])
    assert step.attempt > 1


def test_nobody_is_to_blame_for_not_coming_to_a_draft_when_there_was_a_later_one() -> None:
    made = assembly(0)
    all_ready(made)
    made.hear(0, Draft(1, record(0, 1, 2)), 0.0)
    made.hear(1, Draft(1, record(1, 2, convener=1)), 0.0)  # of one who had not heard of rank 0 in time
    made.hear(1, Dropped(1, (1, 1), (), "a newcomer died"), 0.0)
    made.drop((1, 0), [UIDS[1], UIDS[2]])
    step = made.next(0.0)
    assert isinstance(step, Invite)
    assert step.members == (UIDS[0], UIDS[1], UIDS[2])


def test_why_no_draft_could_be_formed_is_told_in_the_end() -> None:
    made = assembly(0)
    all_ready(made)
    for attempt, why in enumerate(("no\n\x1bmemory left", ""), 1):
        made.hear(0, Draft(1, record(0, 1, 2, attempt=attempt)), 0.0)
        made.hear(1, Dropped(1, (attempt, 0), (), why), 0.0)
    step = made.next(1e6)
    assert isinstance(step, Fail) and step.quorum
    assert step.why.endswith('failed: rank 1 says: "no  memory left"')
    made.drop((3, 0), why="rank 0 has no memory left")
    step = made.next(1e6)
    assert isinstance(step, Fail) and step.why.endswith("failed: rank 0 has no memory left")


def test_drafts_of_different_calls_have_different_numbers() -> None:
    attempts = set()
    for call in (1, 2):
        made = Assembly(call, 0, 0, UIDS[:1])
        made.begin(Ready(call, 1, True, 0, ()), 10.0)
        step = made.next(0.0)
        assert isinstance(step, Invite)
        attempts.add(step.attempt)
    assert len(attempts) == 2


def test_a_draft_that_fails_in_its_time_leaves_time_for_another() -> None:
    made = assembly(0, deadline=1.0)
    all_ready(made)
    made.hear(0, Draft(1, record(0, 1, 2)), 0.5)
    assert isinstance(made.next(0.5 + FORMING), Form)
    made.drop((1, 0), [UIDS[2]])
    assert isinstance(made.next(0.5 + FORMING), Invite)


# ── rules 4 and 5: the decision ──────────────────────────────────────────────────────────────────────────


def test_the_drafts_convener_asks_the_arbiter_and_others_do_when_nothing_is_heard() -> None:
    for rank, at in ((0, 0.0), (2, 10.0 + GRACE)):
        made = assembly(rank)
        made.hear(0, Draft(1, record(0, 1, 2)), 0.0)
        made.form((1, 0))
        if rank:
            assert isinstance(made.next(0.0), Wait)
        assert made.next(at) == Rule(record(0, 1, 2))
        made.asked((1, 0), "no answer")
        assert made.next(at) == Rule(record(0, 1, 2))  # while there is time
        last = made.next(at + 2 * GRACE + 10.0)
        assert isinstance(last, Fail)
        assert last.quorum
        assert last.why == "no answer"


def test_what_is_decided_holds_whatever_else_was_said() -> None:
    made = assembly(1)
    made.hear(0, Draft(1, record(0, 1, 2)), 0.0)
    made.hear(2, Void(1, "given up", False), 0.0)
    assert made.next(0.0) == Fail("given up")
    made.hear(0, Decided(1, record(0, 1, 2)), 0.0)
    assert made.next(0.0) == Adopt(record(0, 1, 2))
    made.decide(record(0, 2))
    assert made.next(0.0) == Adopt(record(0, 1, 2))


def test_whoever_is_not_in_the_decided_epoch_is_evicted() -> None:
    made = assembly(1)
    made.hear(0, Decided(1, record(0, 2)), 0.0)
    fail = made.next(0.0)
    assert isinstance(fail, Fail)
    assert fail.evicted


@pytest.mark.parametrize("quorum", [False, True])
def test_a_void_call_ends(quorum: bool) -> None:
    made = assembly(1)
    made.hear(0, Void(1, "2 came in time, 3 were asked for", quorum), 0.0)
    assert made.next(0.0) == Fail("2 came in time, 3 were asked for", quorum=quorum)


# ── whatever is said ─────────────────────────────────────────────────────────────────────────────────────


def some_motion(draw: random.Random, size: int) -> MemberMessage:
    numbers = [(attempt, rank) for attempt in (1, 2, 3) for rank in range(size)]
    members = draw.sample([*UIDS[:size], NEWCOMER], draw.randint(1, size))
    drawn = Record(draw.choice((1, 1, 1, 2)), draw.choice(numbers), tuple(members))
    match draw.randrange(6):
        case 0 | 1:
            return ready(draw.randint(1, 3), draw.random() < 0.8, draw.choice((0, 0, 1)))
        case 2 | 3:
            return Draft(1, drawn)
        case 4:
            culprits = tuple(draw.sample(UIDS[:size], draw.randrange(size)))
            return Dropped(1, draw.choice(numbers), culprits, "")
        case _:
            return draw.choice((Decided(1, drawn), Void(1, "given up", draw.random() < 0.5)))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_it_ends_by_its_limit_and_adopts_nothing_without_itself(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randint(1, 6)
    rank = draw.randrange(size)
    made = assembly(rank, size, some_ready(draw), deadline=draw.uniform(0.0, 8.0))
    now, invited = 0.0, 0
    end = 8.0 + OVERTIME + 2 * GRACE
    while True:
        step = made.next(now)
        match step:
            case Fail():
                break
            case Adopt(adopted):
                assert adopted.epoch == 1
                assert UIDS[rank] in adopted.members
                break
            case Invite(attempt, members, newcomers, wanted):
                assert UIDS[rank] in members
                assert not {UIDS[gone] for gone in made.gone}.intersection(members)
                assert wanted <= newcomers or not newcomers
                invited += 1
                if draw.random() < 0.7:
                    added = (NEWCOMER,) if newcomers and draw.random() < 0.5 else ()
                    made.hear(rank, Draft(1, Record(1, (attempt, rank), members + added)), now)
            case Form(record):
                assert UIDS[rank] in record.members
                if draw.random() < 0.5:
                    made.form(record.number)
                elif draw.random() < 0.5:
                    made.drop(record.number, draw.sample(UIDS[:size], draw.randrange(size)))
            case Rule(record):
                if draw.random() < 0.5:
                    made.asked(record.number, "no answer")
                elif draw.random() < 0.5:
                    made.decide(record)
            case Wait(until):
                assert until > now
        assert now <= end, f"no end by {end}: {step}"
        assert made.limit(now) > now
        if draw.random() < 0.3 and size > 1:
            other = draw.choice([r for r in range(size) if r != rank])
            if draw.random() < 0.3:
                made.lose(other)
            else:
                made.hear(other, some_motion(draw, size), now)
        now += draw.choice((0.0, 0.05, 0.5, made.limit(now) - now))
        now += 0.001


def some_ready(draw: random.Random) -> Ready:
    return ready(draw.randint(1, 3), draw.random() < 0.8, draw.choice((0, 0, 1)))
