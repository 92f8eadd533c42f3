"""What is said of a job in which nothing stands still."""

from __future__ import annotations

from dataclasses import replace

from aiodist.observe.recorder.reading import Line, Vitals
from aiodist.observe.view import RankView
from aiodist.observe.well import well
from tests.observe.made import a_job, a_rank, a_record, a_sum

STEP = Line("/home/u/step.py", 7, "step")


def looked(now: float, waited: dict[int, float], ops: int) -> list[RankView]:
    """Four ranks that have issued so many operations by now, and waited in them for so long."""
    return [
        a_rank(
            rank,
            [a_record(number=ops, issued=now - 0.1 - rank / 100, line=STEP)],
            now=now,
            vitals=Vitals(now, 1, now, 0.01 * (rank + 1), ops, 0),
            sums=[a_sum(ops, 100, seconds)],
        )
        for rank, seconds in waited.items()
    ]


def test_its_speed_its_last_call_and_who_is_slowest() -> None:
    before = looked(20.0, {0: 5.0, 1: 5.0, 2: 5.0, 3: 5.0}, 40)
    now = looked(22.0, {0: 5.4, 1: 5.3, 2: 5.0, 3: 5.32}, 80)
    assert well(a_job(*before), a_job(*now)) == [
        "train.py, 4 ranks on 1 host, since 21 s: nothing stands still",
        "4 running; 80 operations/s, 8 kB/s; 320 operations so far, 0 failed",
        "the last operation: all_reduce #80 of world at step.py:7 in step, 100 ms ago, by rank 0",
        "no rank waits for an operation now",
        "rank 2 is the slowest: it waits for others for 0 % of its time, they for 15 % to 20 % of theirs",
        "the event loops run; rank 3's was late by 40 ms, the most of all of late",
    ]


def test_none_is_slow_where_all_wait_alike() -> None:
    before = looked(20.0, dict.fromkeys(range(4), 5.0), 40)
    now = looked(22.0, {0: 5.1, 1: 5.08, 2: 5.12, 3: 5.1}, 80)
    waits = a_record(number=80, issued=21.5, pending=21.5)
    now[1] = replace(now[1], recording=replace(now[1].recording, pending=(waits,)))
    lines = well(a_job(*before), a_job(*now))
    assert "rank 1 waits now, for 500 ms at most" in lines
    assert "the ranks wait for each other for 4 % to 29 % of their time: none is slow" not in lines
    assert any("3 running, 1 waiting" in line for line in lines)
    calm = well(a_job(*before), a_job(*looked(22.0, {0: 5.1, 1: 5.08, 2: 5.12, 3: 5.1}, 80)))
    assert "the ranks wait for each other for 4 % to 6 % of their time: none is slow" in calm


def test_what_is_not_known_is_not_said() -> None:
    lines = well(None, a_job(a_rank(0), a_rank(1)))
    assert lines[0] == "train.py, 4 ranks (2 are not seen) on 1 host, since 19 s: nothing stands still"
    assert lines[1].startswith("2 running; · operations/s")
    assert "no rank has issued any operation yet" in lines
    assert not any("slow" in line for line in lines)
