"""Who is the cause, by majority and program order, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from aiodist.observe.box import render
from aiodist.observe.recorder import Line, Record
from aiodist.observe.recorder.reading import Event, Group, Link
from aiodist.observe.verdict import Verdict, judge
from aiodist.observe.view import RankView, Stacks
from tests.observe.made import a_job, a_rank, a_record

NOW = 100.0
ELSEWHERE = Line("/home/u/eval.py", 7, "evaluate")


def pending(number: int = 1, **more: Any) -> Record:
    return a_record(number=number, issued=60.0, **{"pending": 60.1} | more)


def seen(rank: int, *, waits: Sequence[Record] = (), last: Sequence[Record] = (), **more: Any) -> RankView:
    """A rank at `NOW` whose loop turns, and which writes."""
    before = (a_record(number=0, issued=50.0, ended=51.0), *last, *waits)
    return a_rank(rank, before, pending=waits, flushed=99.9, now=NOW, **more)


def waiting(*ranks: int) -> list[RankView]:
    return [seen(rank, waits=[pending()]) for rank in ranks]


def one(*ranks: RankView) -> Verdict:
    (verdict,) = judge(a_job(*sorted(ranks, key=lambda rank: rank.rank)))
    return verdict


def test_nothing_is_said_of_a_job_that_is_well() -> None:
    assert judge(a_job(*(seen(rank) for rank in range(4)))) == ()
    assert judge(a_job(*waiting(0, 1, 3), seen(2)), after=41.0) == ()


def test_a_rank_that_is_stopped_before_others_have_waited_as_long_is_told_by_what_they_wait_in() -> None:
    waits = [seen(rank, waits=[a_record(number=1, issued=70.0, pending=70.1)]) for rank in (0, 1, 3)]
    stopped = seen(2, stopped=True)
    vitals = replace(stopped.recording.vitals, turned=69.0)
    stopped = replace(stopped, recording=replace(stopped.recording, vitals=vitals))
    (verdict,) = judge(a_job(*waits[:2], stopped, waits[2]), after=30.5)
    assert (verdict.kind, verdict.ranks) == ("stopped", (2,))
    assert verdict.title == "all_reduce #1 of world (float32, 12 B) has waited 30 s for rank 2 of 4"
    (verdict,) = judge(a_job(seen(0), seen(1), stopped, seen(3)), after=30.5)
    assert verdict.title.startswith("rank 2: it is stopped")


def test_a_rank_that_has_not_come() -> None:
    verdict = one(*waiting(0, 1, 3), seen(2))
    assert (verdict.kind, verdict.ranks) == ("late", (2,))
    assert verdict.title == "all_reduce #1 of world (float32, 12 B) has waited 40 s for rank 2 of 4"
    assert "ranks 0, 1 and 3 wait in it at train.py:41 in main" in verdict.lines
    assert verdict.lines[0].startswith(
        "rank 2 (host-a, pid 4002): it goes on in its program; its last call was all_reduce #0"
    )


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"stopped": True}, "stopped"),
        ({"alive": False}, "dead"),
        ({"flushed": 50.0}, "held"),
        ({"turned": 50.0}, "blocked"),
    ],
)
def test_what_keeps_a_rank_is_told(more: dict[str, Any], kind: str) -> None:
    late = seen(2)
    vitals = late.recording.vitals
    for name in ("flushed", "turned"):
        if name in more:
            vitals = replace(vitals, **{name: more.pop(name)})
    late = replace(late, recording=replace(late.recording, vitals=vitals), **more)
    verdict = one(*waiting(0, 1, 3), late)
    assert (verdict.kind, verdict.ranks) == (kind, (2,))
    assert kind != "stopped" or "kill -CONT 4002" in verdict.lines[-1]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"stopped": True, "turned": 60.2}, "stopped"),
        ({"alive": False}, "dead"),
        ({"flushed": 60.2}, "held"),
        ({"turned": 60.2}, "blocked"),
    ],
)
def test_what_keeps_a_rank_after_it_has_come_is_told_and_not_the_network(
    more: dict[str, Any], kind: str, many: bool
) -> None:
    waits = [pending(), *([pending(2)] if many else [])]
    came = seen(2, waits=waits)
    vitals = came.recording.vitals
    for name in ("flushed", "turned"):
        if name in more:
            vitals = replace(vitals, **{name: more[name]})
    those = {name: value for name, value in more.items() if name not in ("flushed", "turned")}
    came = replace(came, recording=replace(came.recording, vitals=vitals), **those)
    verdict = one(*(seen(rank, waits=waits) for rank in (0, 1, 3)), came)
    assert (verdict.kind, verdict.ranks) == (kind, (2,))
    what = "all_reduce #1 of world (float32, 12 B)"
    assert verdict.title == f"{what} has been pending for 40 s although all ranks have joined it"
    assert not any("network" in line for line in verdict.lines)


def test_a_rank_that_waits_for_another_is_not_the_cause() -> None:
    pair = Group("pair", 0, (2, 3))
    verdict = one(*waiting(0, 1), seen(2, waits=[pending(group=pair)]), seen(3))
    assert verdict.ranks == (3,)


def test_two_that_wait_for_each_other() -> None:
    groups = [Group(name, 0, (1, 2)) for name in "ab"]
    first, second = (
        seen(rank, waits=[pending(group=group)]) for rank, group in zip((1, 2), groups, strict=True)
    )
    verdict = one(first, second)
    assert (verdict.kind, verdict.ranks) == ("deadlock", (1, 2))
    assert "at train.py:41" in verdict.lines[0]


def test_the_one_that_went_another_way_than_most() -> None:
    half = Group("half", 0, (0, 1, 2))
    verdict = one(*waiting(0, 1, 3), seen(2, waits=[pending(group=half, line=ELSEWHERE)]))
    assert (verdict.kind, verdict.ranks) == ("branched", (2,))
    assert "eval.py:7" in verdict.lines[0]
    assert verdict.lines[1].startswith("ranks 0, 1 and 3 wait in all_reduce #1 of world")


def test_where_the_order_of_calls_departs() -> None:
    others = [seen(rank, waits=[pending(2)], last=[a_record(number=1, issued=55.0)]) for rank in (0, 1, 3)]
    verdict = one(*others, seen(2, last=[a_record(number=1, issued=55.0, line=ELSEWHERE)]))
    assert verdict.kind == "branched"
    assert any("differs from the others from #1" in line and "eval.py:7" in line for line in verdict.lines)


def test_a_send_that_nobody_receives() -> None:
    send = pending(0, op="send", root=1, tag=5)
    verdict = one(seen(0), seen(1), seen(2, waits=[send]), seen(3))
    assert (verdict.kind, verdict.ranks) == ("unreceived", (1,))
    assert verdict.title.startswith("send #0 to rank 1 with tag 5 in world")
    received = a_record("recv", 0, 61.0, root=2, tag=5)
    assert one(seen(0), seen(1, last=[received]), seen(2, waits=[send]), seen(3)).kind == "moving"
    anybody = a_record("recv", 3, 61.0, root=-1, tag=5)
    assert one(seen(0), seen(1, last=[anybody]), seen(2, waits=[send]), seen(3)).kind == "moving"
    receiver = seen(1, last=[received])
    held = replace(receiver.recording.vitals, flushed=80.0)  # for less than 30 s, and as long as it matters
    receiver = replace(receiver, recording=replace(receiver.recording, vitals=held))
    cause = one(seen(0), receiver, seen(2, waits=[send]), seen(3))
    assert (cause.kind, cause.ranks) == ("held", (1,))
    other = a_record("recv", 0, 61.0, root=2, tag=4)
    assert one(seen(0), seen(1, last=[other]), seen(2, waits=[send]), seen(3)).kind == "unreceived"


@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_message_is_told_before_the_collective_that_waits_for_both_of_its_ranks(op: str) -> None:
    message = pending(0, op=op, root=1, line=ELSEWHERE)
    verdict = one(*waiting(0, 3), seen(1), seen(2, waits=[replace(message, issued=65.0)]))  # later than they
    assert (verdict.kind, verdict.ranks) == ("unreceived" if op == "send" else "unsent", (1,))
    assert verdict.title.startswith(f"{op} #0 ")
    assert verdict.lines[0].startswith("rank 2 waits in it at") and "eval.py:7" in verdict.lines[0]
    assert "ranks 0 and 3 wait in all_reduce #1 of world at" in verdict.lines[-2]
    came = seen(2, last=[pending()], waits=[message])  # the collective does not wait for it
    said = judge(a_job(*waiting(0), seen(1), came, *waiting(3)))
    assert [verdict.title[:13] for verdict in said] == [
        "all_reduce #1",
        f"{op} #0 {'to' if op == 'send' else 'from'} rank"[:13],
    ]


def test_a_rank_of_which_nothing_is_seen() -> None:
    verdict = one(*waiting(0, 1, 3))
    assert (verdict.kind, verdict.ranks) == ("unseen", (2,))


def test_what_an_error_nobody_waited_for_said_is_told() -> None:
    late = seen(2)
    events = (Event(90.0, "\x1b[31mOSError: disk full\n"),)
    late = replace(late, recording=replace(late.recording, events=events))
    verdict = one(*waiting(0, 1, 3), late)
    assert any("10 s ago" in line and "OSError: disk full" in line for line in verdict.lines)
    assert "\x1b" not in render(verdict)


def test_stacks_and_tasks_are_shown_and_bounded() -> None:
    stacks = Stacks(tuple(f"a.py:{n} in f" for n in range(50)), tuple(f"  t{n}" for n in range(500)))
    verdict = one(*waiting(0, 1, 3), replace(seen(2), stacks=stacks))
    assert "    a.py:0 in f" not in verdict.lines  # it is the loop's own
    assert len(verdict.lines) < 40
    box = render(verdict).splitlines()
    assert box[0].startswith("╭─ aiodist: the job stands still")
    assert all(row.startswith("│ ") for row in box[1:-1])


def test_where_a_program_is_that_runs_beside_the_loop_or_holds_it() -> None:
    beside = Stacks(("run.py:1 in loop",), (), others=("thread 0x1", "  train.py:5 in evaluate"))
    verdict = one(*waiting(0, 1, 3), replace(seen(2), stacks=beside))
    assert verdict.lines[1:4] == ("  its threads:", "    thread 0x1", "      train.py:5 in evaluate")
    held = Stacks(("train.py:7 in write",), ("  a task",))
    blocked = replace(seen(2), stacks=held)
    vitals = replace(blocked.recording.vitals, turned=60.0)
    blocked = replace(blocked, recording=replace(blocked.recording, vitals=vitals))
    verdict = one(*waiting(0, 1, 3), blocked)
    assert verdict.kind == "blocked"
    assert verdict.lines[1] == "    train.py:7 in write"


def steps(rank: int, count: int, late: float) -> RankView:
    last = [a_record(number=n, issued=10.0 + n + late * (rank == 2), ended=11.0 + n) for n in range(count)]
    return a_rank(rank, last, flushed=99.9, now=NOW)


def test_a_straggler() -> None:
    (verdict,) = judge(a_job(*(steps(rank, 50, 0.2) for rank in range(4))))
    assert (verdict.kind, verdict.ranks) == ("straggler", (2,))
    assert verdict.title.startswith(
        "rank 2 came last in 50 of the last 50 operations; the others waited 30 s"
    )
    assert judge(a_job(*(steps(rank, 10, 0.2) for rank in range(4)))) == ()  # too few
    young = [steps(rank, 50, 0.2) for rank in range(4)]
    young = [replace(one, recording=replace(one.recording, began=NOW - 0.9)) for one in young]
    assert judge(a_job(*young)) == ()
    assert judge(a_job(*(steps(rank, 50, 0.01) for rank in range(4)))) == ()  # too little
    apart = [steps(rank, 50, 0.2).placed(0.0, 0.2) for rank in range(4)]
    assert judge(a_job(*apart)) == ()  # the clocks may be wrong by as much


def test_a_straggler_is_found_over_clocks_that_are_apart() -> None:
    ranks = [steps(rank, 50, 0.2) for rank in range(3)]
    apart = replace(steps(3, 50, 0.2), shift=-7.0)  # its clock is 7 s behind what is recorded
    moved = [replace(record, issued=record.issued + 7.0) for record in apart.recording.last]
    apart = replace(apart, recording=replace(apart.recording, last=tuple(moved)))
    (verdict,) = judge(a_job(*ranks, apart))
    assert verdict.ranks == (2,)


def test_a_slow_connection() -> None:
    def linked(rank: int, busy: float, rate: float = 0.0) -> RankView:
        view = seen(rank)
        links = (Link((rank + 1) % 4, 100 << 20, busy, 0.08, 0, rate),)
        return replace(view, recording=replace(view.recording, links=links))

    (verdict,) = judge(a_job(linked(0, 1.0), linked(1, 1.0), linked(2, 80.0), linked(3, 1.0)))
    assert (verdict.kind, verdict.ranks) == ("slow link", (2, 3))
    assert "is slow: 1.3 MB/s, while other connections reach 105 MB/s" in verdict.title
    quick = linked(2, 80.0, rate=9e7)  # it counts as busy while acknowledgements of small messages are late
    assert judge(a_job(linked(0, 1.0), linked(1, 1.0), quick, linked(3, 1.0))) == ()
    assert judge(a_job(*(linked(rank, 80.0) for rank in range(4)))) == ()
    assert judge(a_job(linked(0, 0.1), linked(1, 0.1), linked(2, 1.0), linked(3, 0.1))) == ()  # hardly used


@pytest.mark.parametrize("op", ["all_reduce", "recv"])
def test_it_is_the_same_trouble_while_the_cause_works_in_another_group(op: str) -> None:
    part = Group("part", 0, (1, 2))
    waits = seen(0, waits=[pending(op=op, root=1)])
    said = [
        one(waits, *(seen(rank, last=[a_record(group=part, number=number)]) for rank in (1, 2)))
        for number in (3, 4)
    ]
    assert said[0].about == said[1].about
    later = seen(0, waits=[pending(op=op, root=1, number=2)])
    assert one(later, seen(1), seen(2)).about != said[0].about


def test_calls_that_wait_for_each_other_and_calls_beyond_the_most() -> None:
    def told(to: list[Any], full: list[Any], room: list[Any], within: Any = None) -> dict[str, Any]:
        if within is None:
            within = [[name, *one] for one, (name, *_) in zip(to, full, strict=False)]
        return {"calls": {"asked": 1, "served": 1, "to": to, "room": room, "full": full, "within": within}}

    zero = seen(0, about=told([[1, "up", 60.0, 3]], [["down", 60.0, 1]], []))
    verdict = one(zero, seen(1, about=told([[0, "down", 61.0, 1]], [["up", 60.0, 3]], [])))
    assert (verdict.kind, verdict.ranks) == ("calls", (0, 1))
    assert verdict.title == "ranks 0 and 1 wait for each other's answers, for 39 s"
    assert (
        "'down' of rank 0 waits for 'up' of rank 1, which runs there as often as its limit allows"
        in verdict.lines
    )
    assert (
        "'up' of rank 1 waits for 'down' of rank 0, which runs there as often as its limit allows"
        in verdict.lines
    )
    zero = seen(0, about=told([[1, "up", 60.0, 3]], [["down", 60.0, 1]], [], []))
    one_too = seen(1, about=told([[0, "down", 61.0, 1]], [["up", 60.0, 3]], [], []))
    slow = judge(a_job(zero, one_too))  # no handler calls: they are only slow
    assert [(verdict.kind, verdict.ranks, verdict.title) for verdict in slow] == [
        (
            "crowded",
            (called,),
            f"rank {1 - called} waits for {name!r} of rank {called}, which runs there as often as its "
            f"limit allows, and slowly, for {seconds} s",
        )
        for called, name, seconds in ((1, "up", 40), (0, "down", 39))
    ]
    assert "stands still" not in render(slow[0])
    verdict = one(seen(0, about=told([[1, "up", 60.0, 256]], [], [[1, 60.0, 4]])), seen(1))
    assert (verdict.kind, verdict.ranks) == ("unanswered", (1,))
    assert verdict.title.startswith("256 calls of rank 0 to rank 1 have no answer, and 4 more wait")
    assert judge(a_job(seen(0, about=told([[1, "up", 60.0, 256]], [], [])), seen(1))) == ()
