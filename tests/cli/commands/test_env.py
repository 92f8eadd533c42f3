"""`aiodist env`: one line for each fact, coloured where somebody sees it."""

from __future__ import annotations

import pytest

from aiodist.cli.main import main

JOB = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "[::1]", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "AIODIST_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


def test_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {line.split()[0]: line.partition("  ")[2].strip() for line in lines}
    assert (facts["rank"], facts["world_size"], facts["master_addr"]) == ("0", "2", "::1")
    assert facts["meets"] == "at an address, [::1]:29500"
    assert "\x1b" not in "".join(lines)


def test_colours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("MASTER_PORT")
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[2mrank" in shown
    assert "\x1b[33mnowhere, init_process_group() would be refused: MASTER_PORT is not set" in shown
