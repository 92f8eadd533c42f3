"""The rules of the trace format, as its documentation states them: https://docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU and https://perfetto.dev/docs/getting-started/other-formats."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

PHASES = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def check(trace: dict[str, Any]) -> None:
    """Assert that a trace keeps them; also what this project promises: arrows run forwards."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert PHASES[event["ph"]] <= event.keys(), event
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["ts"] >= 0
        assert event["ts"] * 8 == int(event["ts"] * 8)
    metadata(trace["traceEvents"])
    nesting(trace["traceEvents"])
    flows(trace["traceEvents"])


def metadata(events: list[dict[str, Any]]) -> None:
    """Each process and thread that has events has a name and a place, once."""
    told = [(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"]
    assert len(told) == len(set(told))
    assert {name for name, _, _ in told} <= NAMES
    for event in events:
        if event["ph"] != "M":
            assert ("process_name", event["pid"], 0) in told
            assert ("thread_name", event["pid"], event["tid"]) in told
        elif event["name"].endswith("_name"):
            assert event["args"]["name"]
        else:
            assert type(event["args"]["sort_index"]) is int


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The begin and end of each slice, in nanoseconds, by thread."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, length = (int(event[name] * 1000) for name in ("ts", "dur"))  # as readers in C++ do
            assert length > 0
            found[event["pid"], event["tid"]].append((start, start + length))
    return found


def nesting(events: list[dict[str, Any]]) -> None:
    """Of two slices of a thread one holds the other, or they do not overlap."""
    for spans in slices(events).values():
        open_slices: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_slices and open_slices[-1] <= start:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1], (start, end, open_slices)
            open_slices.append(end)


def flows(events: list[dict[str, Any]]) -> None:
    """Each flow has one begin and one end, in slices, and the end is not before the begin."""
    spans = slices(events)
    ends: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            key = event["cat"], event["name"], event["id"]
            assert event["ph"] not in ends[key], "an id twice"
            ends[key][event["ph"]] = event
            at = int(event["ts"] * 1000)
            there = spans[event["pid"], event["tid"]]
            assert any(start <= at < end for start, end in there), "an arrow that ends in no slice"
    for both in ends.values():
        assert set(both) == {"s", "f"}
        assert both["s"]["ts"] <= both["f"]["ts"], "an arrow that runs backwards"
        assert both["f"]["bp"] == "e"
