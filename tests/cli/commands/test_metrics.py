"""`aiodist metrics`: what it refuses, writes, and says of a collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from aiodist.base.environment.files import write_file
from aiodist.cli.commands import metrics
from aiodist.cli.main import main
from aiodist.observe import JobView, ended, host, source
from aiodist.observe.metrics import otel, prometheus
from aiodist.observe.metrics.families import MetricFamily
from aiodist.observe.metrics.otel import OtlpPush
from tests.observe.made import a_job
from tests.observe.metrics.made import a_sum, seen
from tests.observe.metrics.receiver import receiving

JOB = a_job(*(seen(rank, sums=[a_sum(uses=5)]) for rank in range(4)))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[list[JobView]]:
    """What is seen here, look by look; and then nothing."""
    shown = [[JOB], [JOB]]

    monkeypatch.setattr(source, "read_jobs", lambda key: shown.pop(0) if shown else [])
    monkeypatch.setattr(host, "read_jobs", lambda: shown.pop(0))
    monkeypatch.setattr(ended, "read_jobs", list)
    return shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every=0"], "--every=0 is not between 0.1 and infinity"),
        (["--every=nan"], "--every=nan is not between 0.1 and infinity"),
        (["--textfile=metrics.txt"], "does not end in .prom. node_exporter reads no other files"),
        (
            ["--otlp", "train.py"],
            "'train.py' is not the URL of a collector. Write for example http://localhost:4318",
        ),
        (["--oltp"], "there is no option --oltp. Did you mean --otlp?"),
    ],
)
def test_what_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [([], prometheus, "observe"), (["--textfile=a.prom"], prometheus, "observe"), (["--otlp"], otel, "otel")],
)
def test_who_lacks_a_library_is_told_at_once(
    words: list[str],
    module: Any,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main(["metrics", *words]) == 2
    assert f"pip install 'aiodist[{extra}]'" in capsys.readouterr().err


def test_once(looks: list[list[JobView]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "train.py"]) == 0
    assert 'aiodist_ops_total{group="world",key="cafe",op="all_reduce"} 20.0\n' in capsys.readouterr().out
    assert main(["metrics", "other.py"]) == 2
    assert "there is no job 'other.py'" in capsys.readouterr().err


def test_a_file_is_there_while_the_job_is(
    looks: list[list[JobView]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "aiodist.prom"
    write, there = write_file, []

    def written(file: Path, text: str) -> None:
        write(file, text)
        there.append(([path.name for path in tmp_path.iterdir()], file.read_text() == text, bool(text)))

    monkeypatch.setattr(metrics, "write_file", written)
    assert main(["metrics", "--every=0.1", f"--textfile={file}"]) == 0
    assert there == [(["aiodist.prom"], True, True)] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(
    looks: list[list[JobView]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--textfile=/nowhere/aiodist.prom"]) == 1
    assert "cannot write '/nowhere/aiodist.prom': No such file or directory" in capsys.readouterr().err


def test_what_is_pushed(looks: list[list[JobView]]) -> None:
    with receiving() as receiver:
        assert main(["metrics", "--every=0.1", "--otlp", receiver.url]) == 0
    assert len(receiver.requests) == 2


class Collector:
    """Instead of `OtlpPush`: what it answers, one after the other; at the end it hangs until it is closed."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.closed = threading.Event()

    def push(self, families: Sequence[MetricFamily]) -> str:
        if self.answers:
            return self.answers.pop(0)
        self.closed.wait()
        return "shut down"

    def close(self) -> None:
        self.closed.set()


async def test_a_collector_that_fails_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    collector = Collector("", "refused", "refused again", "", "refused")
    pusher = metrics._Pusher(cast("OtlpPush", collector), "http://c")
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    while collector.answers:
        await pusher.send((), left)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "aiodist metrics: cannot push to http://c: refused",
        "aiodist metrics: pushes to http://c again",
        "aiodist metrics: cannot push to http://c: refused",
    ]


async def test_who_leaves_waits_for_no_collector(capsys: pytest.CaptureFixture[str]) -> None:
    collector = Collector()
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    sending = asyncio.create_task(metrics._Pusher(cast("OtlpPush", collector), "http://c").send((), left))
    left.set_result(0)
    await sending
    assert collector.closed.is_set()
    assert capsys.readouterr().err == ""
