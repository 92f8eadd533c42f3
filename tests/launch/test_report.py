"""The last lines that a failed job writes."""

from __future__ import annotations

import signal

from aiodist.launch.report import how_it_ended, render
from aiodist.launch.verdict import Ending, NodeReport, Verdict, judge


def ending(
    rank: int, code: int, *, asked: int = 0, symptom: bool = False, words: tuple[str, ...] = ()
) -> Ending:
    return Ending(rank, rank, 0, "box", 100 + rank, code, 1_500_000_000 + rank, asked, symptom, words)


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
                    ending(0, 1, symptom=True),
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
    assert "│ rank 0: exit code 1, because of another rank" in rows
    assert "│ ranks 2 and 4: stopped by aiodist run (SIGTERM)" in rows
    assert "│ rank 3: stopped by aiodist run (SIGKILL, since it did not end on SIGTERM)" in rows
    assert rows[-2] == "│ exit code 7"
    assert "\x1b" not in text
    assert "\x1b[31m" in render(verdict, colour=True)


def test_a_silent_death_says_so() -> None:
    verdict = judge([NodeReport(0, "box", (ending(0, -9),), turn=1)])
    text = render(verdict)
    assert "killed by SIGKILL (nobody here sent it: often the kernel, out of memory; see dmesg)" in text
    assert "it wrote nothing to stderr" in text


def test_a_lost_node_is_named() -> None:
    text = render(judge([NodeReport(0, "box", (ending(0, -15, asked=15),))], 2), nnodes=2)
    assert "the job was cut short" in text
    assert "node 1: lost" in text
    assert "rank 0 on box: stopped by aiodist run (SIGTERM)" in text


def test_an_interrupted_job_gets_one_line() -> None:
    endings = (ending(0, -2, asked=2), ending(1, -9, asked=9))
    text = render(judge([NodeReport(0, "box", endings, 1, signal.SIGINT)]))
    assert text == (
        "aiodist run: stopped by SIGINT: all 2 worker(s) have ended; rank 1 had to be killed; exit code 130\n"
    )


def test_a_signal_without_a_name() -> None:
    assert how_it_ended(ending(0, -99)) == "killed by signal 99"
