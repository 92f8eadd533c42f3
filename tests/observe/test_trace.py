"""The trace keeps the format's rules, whatever ranks did; its arrows run forwards, whatever their clocks."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.cli.main import main
from aiodist.observe import JobView, RankView
from aiodist.observe.arrows import corrections, messages
from aiodist.observe.clocks import UNKNOWN, clock_of
from aiodist.observe.dumps import open_given, write
from aiodist.observe.recorder import Record
from aiodist.observe.recorder.reading import Group, Sum
from aiodist.observe.spans import spans
from aiodist.observe.trace import trace
from tests.levels import COSTLY
from tests.observe.format import check
from tests.observe.made import a_job, a_rank, a_record

WORLD = Group("world", 0, range(4))


def of_kind(made: dict[str, Any], *phases: str) -> list[dict[str, Any]]:
    return [event for event in made["traceEvents"] if event["ph"] in phases]


def operations(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in of_kind(made, "X") if event["cat"] != "phase"]


def send(number: int, at: float, to: int, **more: Any) -> Record:
    return a_record("send", number, at, root=to, **more)


def recv(number: int, at: float, source: int, ended: float = 0.0, **more: Any) -> Record:
    return a_record("recv", number, at, root=source, pending=at if ended else 0.0, ended=ended, **more)


def test_what_a_slice_tells() -> None:
    whole = a_record(number=7, issued=10.0, pending=10.0, arrived=12.0, ended=13.0)
    made = trace(a_job(a_rank(1, [whole])))
    check(made)
    (one,) = operations(made)
    assert (one["name"], one["pid"], one["tid"], one["ts"], one["dur"]) == ("all_reduce", 1, 1, 0.0, 3e6)
    assert one["args"] == {
        "group": "world",
        "epoch": 0,
        "number": 7,
        "bytes": 12,
        "dtype": "float32",
        "shape": [3],
        "line": "train.py:41 in main",
        "state": "ended",
        "reduce": "SUM",
    }
    phases = [(event["name"], event["ts"], event["dur"]) for event in of_kind(made, "X")[1:]]
    assert phases == [("waiting", 0.0, 2e6), ("moving", 2e6, 1e6)]
    names = {(event["name"], *event["args"].values()) for event in of_kind(made, "M")}
    assert ("process_name", "rank 1 host-a:4001") in names
    assert ("process_sort_index", 1) in names
    assert made["distributedInfo"]["world_size"] == 4
    assert made["baseTimeNanoseconds"] == 1_000_000_010_000_000_000


def test_what_pends_is_cut_and_marked() -> None:
    pending = a_record(issued=10.0, pending=11.0)
    for alive, end in ((True, 20.0), (False, 15.0)):
        rank = a_rank(0, [pending], pending=[pending], flushed=15.0, alive=alive)
        made = trace(a_job(rank))
        check(made)
        (one,) = operations(made)
        assert (one["dur"], one["args"]["state"]) == ((end - 10.0) * 1e6, "still pending; cut here")
        assert len(of_kind(made, "X")) == 2  # it waits, as far as anybody knows


def test_operations_that_overlap_lie_in_lanes() -> None:
    last = [a_record(number=k, issued=10.0 + k, pending=10.0 + k, ended=14.5 + k) for k in range(10)]
    made = trace(a_job(a_rank(0, last)))
    check(made)
    assert [event["tid"] for event in operations(made)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


def test_what_happened_beside_operations() -> None:
    told = a_rank(0, [a_record()], events=["it \x1b[1m broke"])
    blocked = replace(told, now=30.0, recording=replace(told.recording, rank=1))
    blocked = replace(blocked, recording=replace(blocked.recording, vitals=replace(
        blocked.recording.vitals, flushed=30.0)))  # fmt: skip
    made = trace(a_job(told, blocked, a_rank(2, flushed=3.0), a_rank(3, alive=False)))
    check(made)
    names = {(event["pid"], event["name"]) for event in of_kind(made, "i")}
    assert names == {
        (0, "it  [1m broke"),
        (1, "it  [1m broke"),
        (1, "last seen running: its event loop is blocked"),
        (2, "last sign: a call holds its interpreter"),
        (3, "last sign: its process has ended without leaving"),
    }


def test_only_the_last_seconds() -> None:
    last = [a_record(number=k, issued=float(k)) for k in range(10, 20)]
    made = trace(a_job(a_rank(0, last)), seconds=4.5)
    check(made)
    assert [event["args"]["number"] for event in operations(made)] == [16, 17, 18, 19]


def arrows(made: dict[str, Any]) -> list[tuple[int, int]]:
    begins, ends = of_kind(made, "s"), of_kind(made, "f")
    return [(one["pid"], other["pid"]) for one, other in zip(begins, ends, strict=True)]


def test_an_arrow_from_a_send_to_its_receive() -> None:
    made = trace(
        a_job(
            a_rank(0, [send(0, 10.0, 1), send(1, 12.0, 1), send(0, 13.0, 1, tag=5)]),
            a_rank(1, [recv(0, 9.0, 0, 11.0), recv(1, 11.5, 0), recv(0, 11.0, 0, 14.0, tag=5)]),
        )
    )
    check(made)
    assert arrows(made) == [(0, 1)] * 3
    assert made["otherData"]["arrows"] == 3


def test_receives_that_were_taken_back_are_counted() -> None:
    back = recv(1, 10.0, 0, 10.5, failed=True)
    ranks = [
        a_rank(0, [send(k, 11.0 + k, 1) for k in range(4)]),
        a_rank(1, [recv(0, 9.0, 0, 11.1), back, recv(2, 10.6, 0, 12.1), recv(3, 12.2, 0, 13.1)]),
    ]
    sums = Sum(WORLD, "recv", "float32", (3,), "", 0, 0, 12, 4, 4, 1, 0.0, 0.0)
    ranks[1] = replace(ranks[1], recording=replace(ranks[1].recording, sums=(sums,)))
    found = messages(ranks, [span for rank in ranks for span in spans(rank)])
    assert [(a.tail.record.number, a.head.record.number) for a in found] == [(0, 0), (1, 2), (2, 3)]


def test_receives_from_anybody_have_no_arrows() -> None:
    receiver = a_rank(1, [recv(0, 9.0, -1, 11.0), recv(0, 9.0, 0, 12.0)])
    sums = Sum(WORLD, "recv", "float32", (3,), "", -1, 0, 12, 1, 1, 0, 0.0, 0.0)
    receiver = replace(receiver, recording=replace(receiver.recording, sums=(sums,)))
    made = trace(a_job(a_rank(0, [send(0, 10.0, 1)]), receiver))
    check(made)
    assert arrows(made) == []


def test_collectives_have_arrows_from_the_last_or_the_root() -> None:
    def all_wait(**more: Any) -> JobView:
        return a_job(*(
            a_rank(rank, [a_record(issued=10.0 + rank, pending=10.0 + rank, ended=15.0, **more)])
            for rank in range(4)
        ))  # fmt: skip

    assert arrows(trace(all_wait())) == [(3, 0), (3, 1), (3, 2)]
    assert arrows(trace(all_wait(op="broadcast", root=1))) == [(1, 0), (1, 2), (1, 3)]
    assert arrows(trace(all_wait(op="reduce", root=1))) == []
    missing = a_job(*all_wait().ranks[:3])
    assert arrows(trace(missing)) == []


def test_an_arrow_that_no_clock_explains_is_left_out() -> None:
    made = trace(a_job(a_rank(0, [send(0, 12.0, 1)]), a_rank(1, [recv(0, 9.0, 0, 11.0)])))
    check(made)
    assert arrows(made) == []
    assert made["otherData"]["arrows left out, since they ran backwards"] == 1


def test_clocks_move_within_their_bounds_so_that_arrows_run_forwards() -> None:
    sender = a_rank(0, [send(0, 12.0, 1)])
    receiver = a_rank(1, [recv(0, 9.0, 0, 11.0)], clock="two", host="host-b")
    made = trace(a_job(sender, receiver.placed(0.0, 1.5)))
    check(made)
    assert arrows(made) == [(0, 1)]
    moved = [clock["moved"] for clock in made["otherData"]["clocks"]]
    assert moved[0] == 0.0
    assert 1.0 < moved[1] < 1.1
    assert made["otherData"]["clock error in seconds, at most"] == 1.5
    unknown = trace(a_job(sender, receiver.placed(0.0, UNKNOWN)))
    assert arrows(unknown) == [(0, 1)]
    assert unknown["otherData"]["clock error in seconds, at most"] is None


def test_no_ranks() -> None:
    check(trace(JobView("cafe", ())))


TIMES = st.floats(1.0, 100.0)


@st.composite
def records(draw: st.DrawFn) -> Record:
    issued = draw(TIMES)
    pending, arrived, first, ended = (draw(st.just(0.0) | TIMES) for _ in range(4))
    op = draw(st.sampled_from(["send", "recv", "all_reduce", "broadcast", "odd\x1b"]))
    group = draw(st.sampled_from([WORLD, None, Group("sub", 1, (2, 0))]))
    number, root, tag = draw(st.integers(0, 3)), draw(st.integers(-1, 5)), draw(st.integers(0, 1))
    return a_record(
        *(op, number, issued),
        group=group,
        root=root,
        tag=tag,
        pending=pending,
        arrived=arrived,
        first=first,
        ended=ended,
        failed=draw(st.booleans()),
    )


@pytest.mark.slow(COSTLY)
@given(st.data())
def test_the_rules_hold_for_all_that_can_be_recorded(data: st.DataObject) -> None:
    ranks = []
    for number in range(data.draw(st.integers(1, 4))):
        last = data.draw(st.lists(records(), max_size=12))
        pending = data.draw(st.lists(records(), max_size=3))
        clock = data.draw(st.sampled_from(["one", "two"])) if number else "one"
        rank = a_rank(
            *(number, last),
            pending=pending,
            flushed=data.draw(TIMES),
            clock=clock,
            alive=data.draw(st.booleans()),
        )
        shift, error = (0.0, 0.0) if clock == "one" else (3.0, 2.0)
        ranks.append(rank.placed(shift, error, 0.0 if clock == "one" else 1e-5))
    made = trace(a_job(*ranks), data.draw(st.sampled_from([5.0, float("inf")])))
    check(made)
    for told in made["otherData"]["clocks"]:
        assert abs(told["moved"]) <= told["error"] + 1e-9


def exchanged(seed: int, sizes: int, wrong: float = 1.0) -> list[RankView]:
    """Ranks that sent each other messages, on clocks that are set apart.

    Args:
        wrong: by which part of the bounds of error they are placed wrongly, at most.
    """
    rng = random.Random(seed)
    ahead = {rank: rng.uniform(-1000, 1000) * (rank > 0) for rank in range(sizes)}
    error = {rank: rng.uniform(0.0, 0.01) * (rank > 0) for rank in range(sizes)}
    last: dict[int, list[Record]] = {rank: [] for rank in range(sizes)}
    world = Group("world", 0, range(sizes))
    numbers: dict[tuple[int, int], int] = {}
    for number in range(30):
        one, other = rng.sample(range(sizes), 2)
        sent = 2000.0 + number * rng.uniform(0.0, 0.01)
        got = sent + rng.uniform(2e-6, 0.001)
        number = numbers[one, other] = numbers.get((one, other), -1) + 1
        last[one].append(send(number, sent + ahead[one], other, group=world))
        last[other].append(recv(number, sent - 1.0 + ahead[other], one, got + ahead[other], group=world))
    ranks = [
        replace(a_rank(rank, last[rank], clock=str(rank), size=sizes), now=2001.0 + ahead[rank])
        for rank in range(sizes)
    ]
    by = {rank: rng.uniform(-wrong, wrong) * error[rank] - ahead[rank] for rank in range(sizes)}
    return [rank.placed(by[rank.rank], error[rank.rank]) for rank in ranks]


@pytest.mark.slow(COSTLY)
@given(st.integers(0, 2**32), st.integers(2, 5))
def test_arrows_run_forwards_wherever_the_bounds_hold(seed: int, sizes: int) -> None:
    ranks = exchanged(seed, sizes)
    made = trace(a_job(*ranks))
    check(made)
    assert len(arrows(made)) == 30
    assert made["otherData"]["arrows left out, since they ran backwards"] == 0


@given(st.integers(0, 2**32))
def test_clocks_that_need_no_correction_get_none(seed: int) -> None:
    ranks = exchanged(seed, 3, wrong=0.0)
    found = messages(ranks, [span for rank in ranks for span in spans(rank)])
    clocks = {rank.rank: clock_of(rank) for rank in ranks}
    moved = corrections(found, clocks.__getitem__, {clock_of(rank): rank.error for rank in ranks})
    assert set(moved.values()) == {0.0}


def test_arrows_that_contradict_each_other() -> None:
    """Each could be right, and not both: the one that needs more is left out."""
    one = a_rank(0, [send(0, 12.0, 1), recv(0, 9.0, 1, 11.5)])
    other = a_rank(1, [recv(0, 9.0, 0, 11.0), send(0, 12.0, 0)], clock="two")
    made = trace(a_job(one, other.placed(0.0, 3.0)))
    check(made)
    assert arrows(made) == [(1, 0)]


def test_the_command_reads_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_given(tmp_path / "d") as folder:
        write(folder, a_rank(0, [send(0, 10.0, 1)]))
        write(folder, a_rank(1, [recv(0, 9.0, 0, 11.0)]))
    target = tmp_path / "t.json"
    assert main(["trace", str(tmp_path / "d"), "-o", str(target)]) == 0
    assert capsys.readouterr().out == (
        f"{target}: 2 operations of 2 ranks, 1 arrow, times within 0 µs; open it at https://ui.perfetto.dev\n"
    )
    check(json.loads(target.read_text()))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-job"], "there is no job 'no-such-job'"),
        (["--seconds", "0"], "--seconds=0.0 is not a time"),
        (["--seconds", "nan"], "--seconds=nan is not a time"),
    ],
)
def test_errors_of_the_command(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_given(tmp_path / "d") as folder:
        write(folder, a_rank(0))
    assert main(["trace", str(tmp_path / "d"), "-o", str(tmp_path / "none" / "t.json")]) == 1
    assert "cannot write" in capsys.readouterr().err
