"""The launcher's and an agent's messages: what one writes the other reads, and nothing else is one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.launch.remote.messages import (
    BEAT,
    SILENCE,
    Address,
    Began,
    Hello,
    Message,
    Over,
    Signal,
    Task,
    decode,
    encode,
)

EACH: list[Message] = [
    Hello("0.1.0", "10.0.0.1"),
    Task(
        ("--nproc-per-node", "2", "train.py"),
        {"AIODIST_SECRET": "ß\n\udcff"},
        "/work",
        "a",
        1,
        2,
        4,
        ("b",),
    ),
    Began(),
    Over(7, "two\nlines"),
    Address("[fe80::1]:2345"),
    Signal("SIGINT"),
]


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_round_trip_in_one_line(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == message


def wrong(message: Message) -> list[bytes]:
    """Lines that are nearly this message."""
    name, values = json.loads(encode(message))
    lines = [[name, {**values, "more": 1}], [f"{name}x", values], [name], [name, list(values)]]
    for key in values:
        lines.append([name, {other: values[other] for other in values if other != key}])
        lines += [[name, {**values, key: other}] for other in (None, 1.5, [1], {"a": 1}, True)]
    return [json.dumps(line).encode() for line in lines]


@pytest.mark.parametrize("line", [line for message in EACH for line in wrong(message)])
def test_nearly_a_message_is_none(line: bytes) -> None:
    with pytest.raises(WireError, match="not a message"):
        decode(line)


@given(st.binary(max_size=80))
def test_anything_else_is_none(line: bytes) -> None:
    with pytest.raises(WireError):
        decode(line)


def test_an_agent_hears_its_launcher_several_times_before_it_gives_up() -> None:
    assert SILENCE >= 3 * BEAT
    assert SILENCE + BEAT <= 10  # a pulled cable leaves nothing after ten seconds
