"""Two ranks that meet, and what is said of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.cli.doctor import asking, host
from aiodist.cli.doctor.host import check
from aiodist.cli.doctor.topic import Machine, ProcessAnswer
from tests.levels import few


@pytest.mark.parametrize(("transport", "shared"), few([("auto", True), ("tcp", False)], [("auto", True)]))
def test_a_pair(tmp_path: Path, transport: str, shared: bool) -> None:
    folder = tmp_path / "100 %"
    folder.mkdir()
    environ = {**os.environ, "AIODIST_TRANSPORT": transport}
    machine = Machine(environ, ranks=1, limit=120, folder=str(folder))
    answers = asking.ask(host.questions(machine), environ, 90)
    assert list(answers.values()) == [ProcessAnswer({"right": True, "shared": shared})] * 2
    (found,) = host.findings(answers, machine)
    assert found.state == "ok" and ("in shared memory" in found.value) == shared


def test_a_pair_without_a_folder_meets_at_a_port() -> None:
    questions = host.questions(Machine({}, ranks=1, limit=5)).values()
    assert [question.arguments[0] for question in questions] == ["0", "1"]
    (where,) = {question.arguments[1] for question in questions}
    assert where.startswith("tcp://127.0.0.1:")
    assert {question.arguments[2] for question in questions} == {"2.5"}


def test_the_host_backend() -> None:
    good = ProcessAnswer({"right": True, "shared": True})
    assert check([good, good], True).state == "ok"
    apart = ProcessAnswer({"right": True, "shared": False})
    assert check([apart, apart], True).state == "limited"
    assert check([apart, apart], False).state == "ok"
    assert check([good, ProcessAnswer({"right": False, "shared": True})], True).state == "missing"


def test_of_two_ranks_that_failed_the_one_with_a_reason_is_heard() -> None:
    late, reason = (
        ProcessAnswer(trouble="RendezvousTimeout: rank 1 did not come"),
        ProcessAnswer(trouble="it was killed"),
    )
    for pair in ([late, reason], [reason, late]):
        assert check(pair, True).value == "it was killed"
    assert check([late, ProcessAnswer({"right": True, "shared": True})], True).value == late.trouble
