"""What agents leave for each other is of the types that it should be, or refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from aiodist.base.errors import WireError
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.verdict import Ending, NodeReport, judge
from aiodist.net.wire.typed import build, read

ENDING = Ending(1, 1, 0, "host-a", 4711, 1, 123456789, 15, False, "ValueError: no", ("Traceback", "no"))
REPORT = NodeReport(0, "host-a", (ENDING, Ending(0, 0, 0, "host-a", 4710, -9, 5)), 1, 0, (1,), "", ())
ROSTER = Roster((Member(0, "host-a", 2), Member(1, "host-b", 4, 1, 2)), 0, 0, 2, 2345, 2346)

DEEP = b"[" * 100_000


def _without(data: bytes, name: str) -> bytes:
    raw = json.loads(data)
    del raw[name]
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    "data",
    [
        *(DEEP, b"", b"\xff", b"[]", b"5", b"null", b"{}"),
        REPORT.to_json().replace(b'"node_rank": 0', b'"node_rank": "0"'),
        REPORT.to_json().replace(b'"code": 1', b'"code": true'),
        REPORT.to_json().replace(b'"lost": [1]', b'"lost": 1'),
        REPORT.to_json().replace(b'"turn": 1', b'"turn": ' + b"9" * 100),
        REPORT.to_json().replace(b'"turn"', b'"a\\nb"'),
        _without(REPORT.to_json(), "host"),
    ],
)
def test_a_report_of_other_types_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="a node's report is unreadable") as caught:
        NodeReport.from_json(data)
    assert caught.value.message.isprintable()


def test_what_agents_write_is_read() -> None:
    assert NodeReport.from_json(REPORT.to_json()) == REPORT
    assert Roster.from_json(ROSTER.to_json()) == ROSTER
    assert read(int, b"3", "a number") == 3
    with pytest.raises(WireError, match="a job's roster is unreadable"):
        Roster.from_json(DEEP)


def test_a_report_on_workers_of_a_node_that_has_none() -> None:
    strange = NodeReport.from_json(
        REPORT.to_json().replace(
            b'"node_rank": 0, "host": "host-a", "pid"', b'"node_rank": 256, "host": "host-a", "pid"'
        )
    )
    assert strange != REPORT
    assert judge([strange], 1).failures


@dataclass(frozen=True)
class Thing:
    name: str
    share: float = 0.5
    parts: tuple[int, ...] = ()
    marks: dict[str, str] = field(default_factory=dict)
    owner: int | None = None


def test_a_dataclass_comes_back_with_its_defaults() -> None:
    assert read(Thing, b'{"name": "x"}', "a thing") == Thing("x")
    whole = b'{"name": "x", "share": 1, "parts": [1, 2], "marks": {"a": "\\u001b"}, "owner": null}'
    assert read(Thing, whole, "a thing") == Thing("x", 1.0, (1, 2), {"a": ""}, None)
    assert build(Thing, json.loads(whole), str).marks == {"a": "\x1b"}
    for wrong in (
        "{}",
        '{"name": 1}',
        '{"name": "x", "owner": "y"}',
        '{"name": "x", "parts": [1.5]}',
        '{"name": "x", "marks": []}',
        '{"name": "x", "marks": {"a": 1}}',
    ):
        with pytest.raises(WireError, match="a thing is unreadable"):
            read(Thing, wrong.encode(), "a thing")
