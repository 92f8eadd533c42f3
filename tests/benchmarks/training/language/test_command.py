"""The command: a run of seconds, from the start to the tables; and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from aiodist.testing.hosts import Hosts
from benchmarks.harness.command import END, begin
from benchmarks.harness.crew import Crew, CrewError
from benchmarks.harness.peers import AIODIST
from benchmarks.training.language import command, rank

ROOT = Path(__file__).parents[4]


def places() -> set[str]:
    """The namespaces of this process and its children's."""
    folder = Path("/run/netns")
    return {place.name for place in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def hosts() -> None:
    """Skip where there are no network namespaces."""
    with pytest.MonkeyPatch.context():
        try:
            with Hosts(1):
                pass
        except unittest.SkipTest as reason:
            pytest.skip(str(reason))


@pytest.mark.slow("a whole run of the benchmark")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("hosts")
def test_a_run_of_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, page = tmp_path / "results.json", tmp_path / "page.md"
    page.write_text(f"before\n{begin(command.COMMAND)}\n{END}\nafter\n")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "FIGURE", tmp_path / "figure.svg")
    assert command.main(["--quick", "--out", str(out), "--docs"]) == 0
    found = json.loads(out.read_text())
    for name, one in found["runs"].items():
        first, last = one["curve"][0], one["curve"][-1]
        assert last["seconds"] >= 2, name
        assert last["loss"] < first["loss"], name
        assert last["sent"] > 1000 * last["step"] / 20, name
        assert abs(last["sent"] - last["received"]) < 0.2 * last["sent"], name
    per_step = {
        name: one["curve"][-1]["sent"] / one["curve"][-1]["step"] for name, one in found["runs"].items()
    }
    assert per_step["ddp"] > 2 * per_step["ddp-int8"] > 4 * per_step["diloco"] > 8 * per_step["streaming"] / 2
    assert {line["way"] for line in found["sim"]} == set(found["runs"])
    said = capsys.readouterr().out
    assert "| Streaming DiLoCo" in said
    assert said.strip() in page.read_text()
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


@pytest.mark.slow("a rank that fails in the benchmark")
def test_a_rank_that_fails_is_told() -> None:
    with Crew(AIODIST, 2) as crew, pytest.raises(CrewError, match="KeyError: 'huge'"):
        crew.do(rank.begin, name="ddp", shape="huge")


@pytest.mark.slow("the benchmark is stopped")
@pytest.mark.usefixtures("hosts")
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    words = ["language", "--quick", "--only", "ddp", "--seconds", "300"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [
        sys.executable,
        "-m",
        "benchmarks",
        "training",
        *words,
        "--train",
        "--out",
        str(tmp_path / "out.json"),
    ]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "train" in line:
                break
        while not any(f"aiodist-{process.pid}-" in place for place in places()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "interrupted" in process.stderr.read()
    assert not any(f"aiodist-{process.pid}-" in place for place in places())
