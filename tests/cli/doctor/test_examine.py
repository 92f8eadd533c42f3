"""The table of topics, and the examination by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aiodist.cli.doctor import examine
from aiodist.cli.doctor.examine import TOPICS, Topic
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessQuestion
from tests.cli.doctor.asks import MACHINE


def asked() -> list[ProcessQuestion]:
    """The questions of all topics, each name of which is there once."""
    questions = [(name, one) for topic in TOPICS for name, one in topic.questions(MACHINE).items()]
    assert len(dict(questions)) == len(questions)
    return [question for _, question in questions]


@pytest.mark.parametrize("module", sorted({question.examine.__module__ for question in asked()}))
def test_a_process_that_is_asked_imports_nothing_heavy_by_itself(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = ('aiodist.base.environment', 'asyncio', 'cupy', 'mpi4py', 'numpy', 'subprocess', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_topic_that_fails_is_a_finding_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def good(answers: Answers, machine: Machine) -> list[Finding]:
        return [Finding("it", "ok", f"{machine.ranks} ranks")]

    def lame(answers: Answers, machine: Machine) -> list[Finding]:
        raise ValueError("not today")

    monkeypatch.setattr(examine, "TOPICS", (Topic("a", lame), Topic("b", good), Topic("a", good)))
    ok = Finding("it", "ok", "3 ranks")
    failed = Finding("a", "limited", "could not be looked at: ValueError: not today")
    assert examine.examine({}, ranks=3, limit=60, waiting=None) == {"a": [failed, ok], "b": [ok]}


def test_processes_that_are_asked_have_no_launchers_variables_and_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, str]] = []

    def ask(questions: object, environ: dict[str, str], *more: object) -> Answers:
        given.append(environ)
        return {}

    monkeypatch.setattr(examine, "TOPICS", ())
    monkeypatch.setattr(examine, "ask", ask)
    launched = {"RANK": "1", "MASTER_ADDR": "a", "AIODIST_STORE": "a:1", "PMI_FD": "7", "SLURM_JOB_ID": "1"}
    examine.examine({"PATH": "/bin", **launched}, ranks=1, limit=1, waiting=None)
    examine.examine({"AIODIST_SECRET_FILE": "/x"}, ranks=1, limit=1, waiting=None)
    assert given[0].keys() == {"PATH", "AIODIST_SECRET", "CUPY_CACHE_DIR"}
    assert given[1].keys() == {"AIODIST_SECRET_FILE", "CUPY_CACHE_DIR"}
