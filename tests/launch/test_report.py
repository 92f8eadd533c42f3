"""The last lines that a failed job writes."""

from __future__ import annotations

import signal
from dataclasses import replace

from aiodist.launch.report import how_it_ended, render, why_it_ended
from aiodist.launch.verdict import Ending, NodeReport, Verdict, judge


def ending(
    rank: int, code: int, *, asked: int = 0, lost: str = "", error: str = "", words: tuple[str, ...] = ()
) -> Ending:
    at_ns = 1_500_000_000 + rank
    return Ending(
        rank,
        rank,
        0,
        "box",
        100 + rank,
        code,
        at_ns,
        asked,
        bool(lost),
        f"PeerLost: {lost}" if lost else error,
        words,
    )


LOST = "lost rank 1: process 9 ended (in all_reduce #301 of group 'world')"
HINT = ". Look at that rank's output first"


def test_nothing_to_say_about_a_good_job() -> None:
    assert render(Verdict(0)) == ""


def test_box() -> None:
    words = ("Traceback (most recent call last):", '  File "t.py", line 3', "ValueError: no")
    verdict = judge(
        [
            NodeReport(
                0,
                "box",
                (
                    ending(1, 7, words=words),
                    ending(0, 1, lost=LOST + HINT),
                    ending(5, 1, lost=LOST + HINT, asked=signal.SIGTERM),
                    ending(7, -15, lost=LOST + HINT, asked=signal.SIGTERM),
                    ending(6, 3, error="OSError: no room"),
                    ending(2, -15, asked=signal.SIGTERM),
                    ending(3, -9, asked=signal.SIGKILL),
                    ending(4, -15, asked=signal.SIGTERM),
                ),
                turn=1,
            )
        ]
    )
    text = render(verdict, width=60)
    rows = text.splitlines()
    assert rows[0].startswith("╭─ aiodist run: rank 1 failed first ──")
    assert len(rows[0]) == len(rows[-1]) == 60
    assert rows[1] == "│ exit code 7 after 1.50 s · host box, local rank 1, pid 101"
    assert "│ ValueError: no" in rows
    others = rows.index("│ rank 6: exit code 3 · OSError: no room")
    assert rows[others + 1] == f"│ ranks 0, 5 and 7 noticed: {LOST}"
    assert "│ ranks 2 and 4: stopped by aiodist run (SIGTERM)" in rows
    assert "│ rank 3: stopped by aiodist run (SIGKILL, since it did not end on SIGTERM)" in rows
    assert rows[-2] == "│ exit code 7"
    assert "\x1b" not in text
    assert "\x1b[31m" in render(verdict, colour=True)


def test_one_mistake_of_all_ranks_is_shown_once() -> None:
    said = "UsageError: tensor must be an array"
    words = ("Traceback (most recent call last):", said)
    endings = [ending(rank, 1, error=said, words=words) for rank in range(4)]
    endings += [ending(4, 1, error="UsageError: another"), ending(5, 1)]
    text = render(judge([NodeReport(0, "box", tuple(endings), turn=1)]))
    assert text.count(said) == 1
    assert "│ ranks 1, 2 and 3: exit code 1, by the same error\n" in text
    assert "│ rank 4: exit code 1 · UsageError: another\n" in text
    assert "│ rank 5: exit code 1\n" in text


def test_a_silent_death_says_so() -> None:
    verdict = judge([NodeReport(0, "box", (ending(0, -9),), turn=1)])
    rows = render(verdict).splitlines()
    assert rows[1] == "│ killed by SIGKILL after 1.50 s · host box, local rank 0, pid 100"
    assert rows[2] == "│ aiodist did not send it; often the kernel does, out of memory: see dmesg"
    assert rows[3] == "│ it wrote nothing to stderr"


def test_what_others_noticed_is_grouped_by_text_and_bounded() -> None:
    ways = [
        ending(rank, 1, lost=f"lost rank 9: gone (in send #{rank // 2} of group 'g')") for rank in range(9)
    ]
    ways += [ending(10, 1, lost="lost rank 9: gone. Look there"), ending(9, 7)]
    rows = render(judge([NodeReport(0, "box", tuple(ways), 1)])).splitlines()
    assert "│ ranks 2 and 3 noticed: lost rank 9: gone (in send #1 of group 'g')" in rows
    assert "│ rank 8 noticed: lost rank 9: gone (in send #4 of group 'g')" in rows
    assert rows[-3] == "│ rank 10 ended in other ways; see above"
    few = render(judge([NodeReport(0, "box", (ending(0, 7), ending(1, 1, lost="x: y. Do z")), 1)]))
    assert "│ rank 1 noticed: x: y. Do z\n" in few, "without an operation there is no telling the hint"


def test_a_lost_node_is_named() -> None:
    text = render(judge([NodeReport(0, "box", (ending(0, -15, asked=15),))], 2), nnodes=2)
    assert "aiodist run: node 1 was lost ─" in text
    assert "node 1: lost" in text
    assert "rank 0 on box: stopped by aiodist run (SIGTERM)" in text


def test_a_lost_head_is_named_and_what_to_do_where_there_are_restarts() -> None:
    verdict = judge([NodeReport(1, "box", (ending(1, -15, asked=15),), lost=(0,))], 3)
    text = render(verdict, nnodes=3)
    assert "aiodist run: node 0, which hosts the job, was lost ─" in text
    assert "node 0, which hosts the job: lost" in text
    assert "node 2" not in text and "again" not in text
    assert "start the one of this node again" in render(replace(verdict, limit=2), nnodes=3)


def test_what_a_job_that_ended_well_has_survived() -> None:
    gone = replace(ending(3, -9), forgiven=True)
    assert render(Verdict(0, restarts=1, limit=3)) == "aiodist run: the job ended well after 1 restart\n"
    verdict = Verdict(0, endings=(ending(0, 0), gone), spared=(1,), lost=(1,), restarts=2, limit=2)
    assert render(verdict) == (
        "aiodist run: the job ended well after 2 restarts, "
        "without rank 3 (killed by SIGKILL after 1.50 s · host box), node 1 (lost)\n"
    )
    many = Verdict(0, endings=tuple(replace(ending(rank, 1), forgiven=True) for rank in range(8)))
    assert render(many).endswith(", rank 4 (exit code 1 after 1.50 s · host box) and 3 more\n")


def test_restarts_in_the_box() -> None:
    again = replace(ending(1, 7), restarted=True)
    verdict = judge([NodeReport(0, "box", (again, again, ending(1, 8), ending(0, 0)), turn=1)])
    rows = render(replace(verdict, restarts=2, limit=2)).splitlines()
    assert "│ rank 1: exit code 7; started again" in rows
    assert rows[-3:-1] == ["│ 2 of 2 restarts were used", "│ exit code 8"]


def test_why_there_is_no_other_attempt() -> None:
    verdict = judge([NodeReport(0, "box", (ending(0, -15, asked=15),), lost=(1, 2), spared=(2,))], 3)
    text = render(replace(verdict, error="only 1 of at least 2 nodes came"), nnodes=3)
    assert text.startswith("╭─ aiodist run: node 1 was lost ─")
    assert "│ only 1 of at least 2 nodes came\n" in text
    assert "│ node 2: lost; its agent ended or became unreachable without a report; the job went on" in text


def test_an_interrupted_job_gets_one_line() -> None:
    endings = (ending(0, -2, asked=2), ending(1, -9, asked=9))
    text = render(judge([NodeReport(0, "box", endings, 1, signal.SIGINT)]))
    assert text == (
        "aiodist run: stopped by SIGINT: all 2 worker(s) have ended; rank 1 had to be killed; exit code 130\n"
    )


def test_a_signal_without_a_name() -> None:
    assert how_it_ended(ending(0, -99)) == "killed by signal 99"


# ── a rank for which the others had waited ───────────────────────────────────────────────────────────────

LATE = "no completion within 2 s: rank 2 had not arrived (in all_reduce #4 of group 'world')"
DOING = ("  the event loop's thread", "    train.py:9 in step")


def late(rank: int, said: str = LATE) -> Ending:
    return replace(ending(rank, 1), symptom=True, error=f"CollectiveTimeout: {said}. Raise timeout=")


def waited_for(rank: int, doing: tuple[str, ...] = DOING) -> Ending:
    return replace(ending(rank, -signal.SIGTERM, asked=signal.SIGTERM), doing=doing)


def test_the_headline_names_the_rank_that_the_others_waited_for_with_its_stack() -> None:
    job = judge([NodeReport(0, "box", (late(0), late(1), waited_for(2), late(3)), 0)])
    assert job.culprit is not None and (job.culprit.rank, job.code) == (2, 1)
    lines = render(job).splitlines()
    assert lines[0].startswith("╭─ aiodist run: rank 2 kept the others waiting ─")
    assert lines[2:4] == ["│   the event loop's thread", "│     train.py:9 in step"]
    assert f"│ ranks 0, 1 and 3 noticed: {LATE}" in lines and "│ exit code 1" in lines
    assert not any("rank 2: stopped" in line for line in lines)


def test_why_all_begin_again() -> None:
    assert why_it_ended(ending(1, 3)) == "rank 1 failed (exit code 3)"
    assert why_it_ended(waited_for(2)) == "rank 2 kept the others waiting"


def test_what_a_late_rank_did_may_be_unknown() -> None:
    job = judge([NodeReport(0, "box", (late(0), waited_for(2, ())), 0)])
    assert "what it did is not known" in render(job)


def test_a_rank_that_ends_by_itself_is_a_failure_like_any_other() -> None:
    own = replace(ending(2, 1), error="ValueError: late and wrong")
    assert judge([NodeReport(0, "box", (late(0), own), 0)]).culprit == own


def test_several_late_ranks_and_some_that_did_not_answer() -> None:
    said = "no completion within 2 s: ranks 1 and 12 had not arrived; ranks 3, 4 and 5 did not answer (in"
    assert late(0, said).late == {1, 12, 3, 4, 5}
    assert ending(0, 1, error="ValueError: rank 3 had not arrived").late == set()
    job = judge([NodeReport(0, "box", (late(0, said), waited_for(1, ()), waited_for(3)), 0)])
    assert job.culprit is not None and job.culprit.rank == 3, "the one of which something is known"


def test_ctrl_c_says_where_the_ranks_were_grouped() -> None:
    def at(rank: int, line: str) -> Ending:
        words = ("something", f"interrupted at train.py:{line}")
        return ending(rank, 130, asked=signal.SIGINT, words=words)

    endings = (
        at(0, "25 in main: await pg.barrier()"),
        at(1, "9 in step: f()"),
        at(2, "25 in main: await pg.barrier()"),
    )
    lines = render(Verdict(130, None, signal.SIGINT, endings=endings)).splitlines()
    assert lines[1:] == [
        "  ranks 0 and 2 at train.py:25 in main: await pg.barrier()",
        "  rank 1 at train.py:9 in step: f()",
    ]
    many = tuple(at(rank, f"{rank} in main: f()") for rank in range(9))
    lines = render(Verdict(130, None, signal.SIGINT, endings=many)).splitlines()
    assert len(lines) == 7 and lines[-1] == "  ranks 5, 6, 7 and 8 at other lines"
