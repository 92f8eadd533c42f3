"""What happened to a job, in ten lines: who died first, what the others waited in, what to do."""

from __future__ import annotations

from dataclasses import replace

from aiodist.observe import RankView
from aiodist.observe.explain import LINES, ended, explain
from aiodist.observe.outcome import Outcome
from aiodist.observe.recorder import Line
from aiodist.observe.verdict import Verdict
from tests.observe.made import a_job, a_rank, a_record

TRACE = "aiodist trace d -o trace.json"


def waiting(rank: int, number: int = 12) -> RankView:
    return a_rank(rank, [], pending=[a_record(number=number, issued=15.0, pending=15.0)])


def test_the_rank_that_died_is_told_first() -> None:
    dead = a_rank(2, [a_record("recv", 3, issued=14.0, root=1, tag=7)], flushed=14.5, alive=False)
    lines = explain(a_job(waiting(0), waiting(1), dead, waiting(3)), (), TRACE)
    assert lines == [
        "train.py, 4 ranks on 1 host: rank 2 died first, at 01:46:54 UTC",
        "rank 2 (host-a, pid 4002) had last issued recv #3 from rank 1 with tag 7 in world "
        "(train.py:41 in main), 500 ms before its last sign",
        "ranks 0, 1 and 3 waited in all_reduce #12 of world (train.py:41 in main), for 5.0 s",
        "to do: rank 2 reported no error: its log, or on host-a 'dmesg' (out of memory?), says what ended it",
        f"see what led to it: {TRACE}",
    ]


def test_its_error_is_told() -> None:
    dead = a_rank(1, flushed=14.0, alive=False, events=["ValueError: \x1b[31mno\n such"])
    later = a_rank(0, flushed=18.0, alive=False, events=["PeerLost: rank 1"])
    lines = explain(a_job(later, dead), (), TRACE)
    assert lines[0].endswith(
        "; 2 of them wrote nothing: rank 1 died first, at 01:46:54 UTC, 1 more after that"
    )
    assert "rank 1 told at 01:46:54 UTC: ValueError:  [31mno  such" in lines
    assert lines[1] == "rank 1 (host-a, pid 4001) had not begun any operation that is known"
    assert lines[-2] == "to do: repair what rank 1 reported; its log has the whole traceback"


def test_what_survivors_told_is_told_once_with_their_line_and_whole() -> None:
    why = f"PeerLost: lost rank 2: {'because ' * 20}of that"
    failed = [a_record(number=5, issued=15.0, ended=16.0, failed=True)]
    survivors = [a_rank(rank, failed, flushed=18.0, alive=False, events=[why]) for rank in (0, 1, 3)]
    lines = explain(a_job(*survivors[:2], a_rank(2, flushed=14.0, alive=False), survivors[2]), (), TRACE)
    said = "ranks 0, 1 and 3 told at 01:46:58 UTC in all_reduce #5 of world (train.py:41 in main): "
    assert said + why in lines
    assert sum("PeerLost" in line for line in lines) == 1
    long = [a_rank(0, events=[f"{'x' * 500} (train.py:7 in step)"]), a_rank(2, flushed=14.0, alive=False)]
    assert any(line.endswith("xxx (train.py:7 in step)") for line in explain(a_job(*long), (), TRACE))


def test_of_a_long_path_the_end_is_kept_and_the_number() -> None:
    line = Line(f"/home/{'deep/' * 40}training_of_the_large_model.py", 1234, "step" * 50)
    dead = a_rank(2, [a_record(line=line)], flushed=14.5, alive=False)
    (text,) = (text for text in explain(a_job(waiting(0), dead), (), TRACE) if "rank 2 (host" in text)
    assert "training_of_the_large_model.py:1234 in step" in text


def test_deaths_too_close_to_be_told_apart() -> None:
    both = [a_rank(rank, flushed=14.0 + rank / 10, alive=False) for rank in range(2)]
    assert "ranks 0 and 1 died first" in explain(a_job(*both), (), TRACE)[0]
    apart = [both[0].placed(5.0, 0.0), both[1]]
    assert "rank 1 died first" in explain(a_job(*apart), (), TRACE)[0]


def test_nobody_died() -> None:
    lines = explain(a_job(waiting(0), a_rank(1), a_rank(2, flushed=3.0)), (), TRACE)
    assert lines[0].endswith("no rank has died")
    assert "rank 2: a call holds its interpreter, for 17 s" in lines
    verdict = Verdict("held", (2,), "rank 2 holds its interpreter", (), "x")
    judged = explain(a_job(waiting(0), a_rank(1), a_rank(2)), (verdict,), TRACE)
    assert "rank 2 holds its interpreter" in judged
    assert judged[-2] == "to do: look at rank 2, which cause it"


def test_never_more_than_ten_lines() -> None:
    dead = [a_rank(rank, [a_record()], alive=False, events=["e"]) for rank in range(8)]
    live = [waiting(rank, number=rank) for rank in range(8, 20)]
    verdicts = [Verdict("dead", (0,), f"number {number}", (), "x") for number in range(20)]
    lines = explain(a_job(*dead, *live), verdicts, TRACE)
    assert len(lines) == LINES
    assert any("more waits" in line for line in lines)
    assert lines[-1].endswith(TRACE)


KILLED = Outcome(
    *("r", "train.py", 4, 137, 1e9, "rank 2 failed first: killed by SIGKILL at 01:46:54 UTC", 2),
    others=("ranks 0, 1 and 3 noticed: lost rank 2",),
    advice="see dmesg",
)


def test_what_the_launcher_says_comes_before_what_records_seem_to_say() -> None:
    """Rank 1 has the oldest last sign of life, and rank 2, which failed, has left no record."""
    ranks = [a_rank(rank, flushed=14.0 + rank, alive=False) for rank in (1, 3)]
    lines = explain(a_job(*ranks, waiting(0)), (), TRACE, outcome=KILLED, over=True)
    assert lines == [
        f"train.py, 4 ranks on 1 host; 1 of them wrote nothing: {KILLED.title}",
        "rank 2 has left no record of what it did",
        "ranks 0, 1 and 3 noticed: lost rank 2",
        "rank 0 waited in all_reduce #12 of world (train.py:41 in main)",
        "to do: see dmesg",
        f"see what led to it: {TRACE}",
    ]
    again = explain(a_job(*ranks), (), TRACE, outcome=replace(KILLED, again=True), over=True)
    assert "the job has begun again since; how that ends is told here then" in again
    assert ended(KILLED) == [f"train.py, 4 ranks: {KILLED.title}", KILLED.others[0], "to do: see dmesg"]


def test_without_a_launcher_the_rank_that_the_others_lost_is_told() -> None:
    about = {"argv": ["train.py"], "lost": [2]}
    others = [a_rank(rank, about=about, left=20.0, events=["PeerLost: lost rank 2"]) for rank in (0, 1, 3)]
    lines = explain(a_job(*others), (), TRACE, over=True)
    assert lines[0].endswith(
        "; 1 of them wrote nothing: rank 2 ended first, as the others say, and wrote nothing"
    )
    assert "to do: see how rank 2 ended: the output says it, or the launcher" in lines
    left = a_rank(2, left=19.0, about={"argv": ["train.py"], "lost": [2]})
    lines = explain(a_job(*others, left), (), TRACE, over=True)
    assert lines[0].endswith(": rank 2 left first, as the others say")
    assert not any("stands still" in line or "no rank has died" in line for line in lines)
    alone = [a_rank(rank, left=20.0, events=["CollectiveMismatch: ranks disagree"]) for rank in range(4)]
    lines = explain(a_job(*alone), (), TRACE, over=True)
    assert lines[0].endswith(": all that wrote have left, after an error")
    assert "to do: repair what the ranks told; their output has the whole tracebacks" in lines
