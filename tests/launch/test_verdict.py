"""Who failed first, and with which code the job ends."""

from __future__ import annotations

import signal
import traceback
from dataclasses import replace

import pytest

from aiodist.base.errors import AiodistError, CollectiveTimeout, GroupAborted, PeerLost, WireError
from aiodist.launch.report import render
from aiodist.launch.verdict import NEVER, Ending, NodeReport, by_its_words, judge, lost_nodes


def ending(rank: int, code: int = 0, **more: object) -> Ending:
    values: dict[str, object] = {
        "rank": rank,
        "local_rank": rank % 2,
        "node_rank": rank // 2,
        "host": f"h{rank // 2}",
        "pid": 100 + rank,
        "code": code,
        "at_ns": 1000 + rank,
    }
    return Ending(**{**values, **more})  # type: ignore[arg-type]


def report(
    node: int, *endings: Ending, turn: int = NEVER, signum: int = 0, lost: tuple[int, ...] = ()
) -> NodeReport:
    return NodeReport(node, f"h{node}", endings, turn, signum, lost)


def test_all_well() -> None:
    assert judge([report(0, ending(0), ending(1))]).code == 0


def test_first_failure_decides() -> None:
    verdict = judge([report(0, ending(0, 3, at_ns=9), ending(1, 7, at_ns=5), turn=1)])
    assert verdict.code == 7
    assert verdict.culprit is not None and verdict.culprit.rank == 1
    assert [e.rank for e in verdict.failures] == [1, 0]


def test_a_signal_is_128_and_more() -> None:
    assert judge([report(0, ending(0, -signal.SIGSEGV), turn=1)]).code == 139


def test_whom_we_stopped_did_not_fail() -> None:
    stopped = ending(0, -signal.SIGTERM, at_ns=1, asked=signal.SIGTERM)
    verdict = judge([report(0, stopped, ending(1, 7, at_ns=5), turn=1)])
    assert verdict.culprit is not None and verdict.culprit.rank == 1
    assert verdict.failures == (verdict.culprit,)
    assert ending(0, 143, asked=signal.SIGTERM).stopped
    assert not ending(0, -signal.SIGTERM).stopped, "somebody else's SIGTERM is a failure"
    assert ending(0, 1, asked=signal.SIGTERM).failed


def test_a_symptom_gives_way_to_its_cause() -> None:
    verdict = judge([report(0, ending(0, 1, at_ns=1, symptom=True), ending(1, 7, at_ns=5), turn=1)])
    assert verdict.code == 7


def test_who_is_killed_may_have_written_its_last_words_long_before() -> None:
    assert by_its_words(1, 0) and by_its_words(-signal.SIGTERM, signal.SIGTERM)
    assert by_its_words(-signal.SIGABRT, 0), "of torch, which aborts after an error of its group"
    assert not by_its_words(-signal.SIGKILL, 0) and not by_its_words(-signal.SIGSEGV, 0)
    assert not by_its_words(0, 0)


def test_across_nodes_turns_decide_not_clocks() -> None:
    verdict = judge(
        [
            report(0, ending(0, 3, at_ns=1), ending(1), turn=2),
            report(1, ending(2, 9, at_ns=99), ending(3), turn=1),
        ],
        2,
    )
    assert verdict.code == 9


def test_a_symptom_on_the_first_node_gives_way_too() -> None:
    verdict = judge(
        [report(0, ending(0, 1, symptom=True), turn=1), report(1, ending(2, 9), turn=2)],
        2,
    )
    assert verdict.code == 9


def test_the_operator() -> None:
    stopped = ending(0, -signal.SIGINT, asked=signal.SIGINT)
    assert judge([report(0, stopped, turn=1, signum=signal.SIGINT)]).code == 130
    assert judge([report(0, ending(0), turn=1, signum=signal.SIGTERM)]).code == 143
    other = report(1, ending(2, -signal.SIGTERM, asked=signal.SIGTERM))
    assert judge([report(0, stopped, turn=1, signum=signal.SIGINT), other], 2).code == 130


def test_a_failure_before_the_operator_decides() -> None:
    reports = [report(0, ending(0, 5), turn=1), report(1, ending(2, 0), turn=2, signum=signal.SIGTERM)]
    assert judge(reports, 2).code == 5


def test_a_node_that_could_not_start() -> None:
    stopped = report(0, ending(0, -signal.SIGTERM, asked=signal.SIGTERM))
    verdict = judge([stopped, replace(report(1, turn=1), error="no such program")], 2)
    assert (verdict.code, verdict.error) == (2, "node 1 (h1): no such program")


def test_a_lost_node() -> None:
    verdict = judge([report(0, ending(0, -signal.SIGTERM, asked=signal.SIGTERM), lost=(1,))], 2)
    assert (verdict.code, verdict.lost) == (1, (1,))
    assert judge([report(0, ending(0))], 3).lost == (1, 2)


def test_who_lost_node_0_knows_nothing_of_the_others() -> None:
    alone = judge([report(1, ending(3, -signal.SIGTERM, asked=signal.SIGTERM), lost=(0,))], 3)
    assert (alone.code, alone.lost) == (1, (0,))
    both = judge([report(0, ending(0)), report(1, ending(3), lost=(0,)), report(2, ending(5))], 3)
    assert (both.code, both.lost) == (1, (1,)), "node 0 is there: the one that lost it is lost"


@pytest.mark.parametrize(
    ("nodes", "be", "said"),
    [
        ((2,), "is", "node 2 is lost"),
        ((3, 1), "was", "nodes 1, 3 were lost"),
        ((2, 1), "is", "nodes 1, 2 are lost"),
        ((0,), "was", "node 0, which hosts the job, was lost"),
        ((0, 2), "is", "node 0, which hosts the job, is lost"),
    ],
)
def test_lost_nodes_in_words(nodes: tuple[int, ...], be: str, said: str) -> None:
    assert lost_nodes(nodes, be) == said


def test_those_who_noticed_a_lost_node_are_not_blamed() -> None:
    verdict = judge([report(0, ending(0, 1, symptom=True), turn=1, lost=(1,))], 2)
    assert (verdict.code, verdict.culprit, verdict.lost) == (1, None, (1,))
    verdict = judge([report(0, ending(0, 3), turn=1, lost=(1,))], 2)
    assert verdict.code == 3, "a failure of its own is its own"


def test_what_was_mended_does_not_count() -> None:
    again = ending(1, 7, restarted=True)
    assert judge([report(0, ending(0), again, ending(1))]).code == 0
    verdict = judge([report(0, ending(0), again, ending(1, 9, at_ns=5000), turn=1)])
    assert (verdict.code, len(verdict.failures)) == (9, 1)


def test_the_job_goes_on_without_some() -> None:
    gone = ending(1, -9, forgiven=True)
    verdict = judge([report(0, ending(0), gone)])
    assert (verdict.code, verdict.culprit, verdict.failures) == (0, None, ())
    verdict = judge([report(0, ending(0, 3, forgiven=True), gone)])
    assert verdict.code == 3, "nobody was left to do the work"
    stopped = ending(0, -signal.SIGTERM, asked=signal.SIGTERM)
    assert judge([report(0, stopped, gone, turn=1, signum=signal.SIGTERM)]).code == 143


def test_the_job_goes_on_without_a_node() -> None:
    mine = report(0, ending(0), lost=(1,))
    assert judge([mine], 2).code == 1
    verdict = judge([replace(mine, spared=(1,))], 2)
    assert (verdict.code, verdict.lost, verdict.spared) == (0, (1,), (1,))
    verdict = judge([replace(mine, spared=(1,), lost=(1, 2))], 3)
    assert (verdict.code, verdict.spared) == (1, (1,)), "node 2 was not to be missed"
    nobody = replace(mine, spared=(1,), endings=(ending(0, 4, forgiven=True),))
    assert judge([nobody], 2).code == 4


def test_report_survives_json() -> None:
    before = report(1, ending(2, 9, words=("a", "é"), forgiven=True), turn=4, signum=2, lost=(0,))
    before = replace(before, spared=(0,))
    assert NodeReport.from_json(before.to_json()) == before


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"endings": [1]}', b"\xff"])
def test_a_broken_report_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        NodeReport.from_json(data)


def test_one_that_waited_itself_gives_way_to_the_one_for_which_it_waited() -> None:
    late = "CollectiveTimeout: no completion within 4 s"
    told = "CollectiveTimeout: rank 0 gave up after 4 s: it waited for rank 1, this process"
    both = f"{late}: ranks 1 and 2 had not arrived (in barrier #2 of group 'g')"
    first = ending(0, 1, symptom=True, error=both)
    second = ending(1, 1, error=f"{told}; rank 2 had not arrived (in recv #0 of group 'g')")
    third = ending(2, -15, asked=15, doing=("asleep",))
    assert second.late == {2}
    assert judge([report(0, first, second, third, turn=1)]).culprit == third
    alone = ending(1, 1, error=f"{told} (in recv #0 of group 'g')")
    assert not alone.late and judge([report(0, first, alone, third, turn=1)]).culprit == alone


def test_one_that_had_failed_and_did_not_end() -> None:
    """A thread keeps its process: it is the one that failed, though it was stopped."""
    aborted = "GroupAborted: rank 0 aborted the group: TypeError: mine (in barrier #2 of group 'world')"
    noticed = ending(1, 1, symptom=True, error=aborted)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        lingers = ending(0, -signum, asked=signum, error="TypeError: mine", words=("TypeError: mine",))
        verdict = judge([report(0, lingers, noticed, turn=1)])
        assert verdict.culprit is not None and verdict.culprit.rank == 0 and verdict.culprit.failed
        assert verdict.code == 1 and verdict.failures[1] == noticed
        box = render(verdict)
        assert "rank 0 failed first" in box and "did not end, and was stopped" in box and "dmesg" not in box
    quiet = ending(0, -15, asked=15)  # it has written nothing: it was stopped, and no more is known
    assert judge([report(0, quiet, noticed, turn=1)]).culprit == noticed
    unnamed = ending(2, -15, asked=15, error="ValueError: long ago")
    assert judge([report(0, quiet, noticed, unnamed, turn=1)]).culprit == noticed


def traceback_ends(error: AiodistError) -> str:
    """The line with which a traceback ends, as the launcher keeps it: without the module."""
    return traceback.format_exception_only(error)[-1].split("\n")[0].removeprefix("aiodist.")


@pytest.mark.parametrize("ranks", [(2,), (1, 2), (0, 3, 11)])
def test_the_ranks_in_an_errors_own_text_are_found(ranks: tuple[int, ...]) -> None:
    lost = ending(5, 1, symptom=True, error=traceback_ends(PeerLost(ranks, "it ended", op="barrier", seq=3)))
    assert lost.gone == set(ranks)
    aborted = ending(5, 1, symptom=True, error=traceback_ends(GroupAborted(ranks[-1], "why", group="g")))
    assert aborted.gone == {ranks[-1]}
    for late in (CollectiveTimeout(4.0, missing=ranks), CollectiveTimeout(4.0, unheard=ranks)):
        assert ending(5, 1, symptom=True, error=traceback_ends(late)).late == set(ranks)
