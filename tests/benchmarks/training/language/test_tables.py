"""The tables and the curves, from known results."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.language import curves, tables
from benchmarks.training.language.ways import WAYS


def curve(step: float, sent: float, losses: list[float]) -> list[dict[str, float]]:
    """Points 10 s apart."""
    return [
        {"seconds": 10.0 * at, "step": step * at, "sent": sent * at, "received": sent * at, "loss": loss}
        for at, loss in enumerate(losses)
    ]


def run(rate: float, others: float, points: list[dict[str, float]]) -> dict[str, Any]:
    """The results of an algorithm."""
    return {"curve": points, "values": 7, "rate": rate, "others": others}


RESULTS: dict[str, Any] = {
    "machine": {
        "cpu": "a processor",
        "cores": 2,
        "kernel": "Linux 6",
        "packages": {"torch": "2.13"},
        "date": "2026-01-02T03:04",
        "commit": "abc",
    },
    "settings": {"seconds": 40, "ranks": 4, "link": "100mbit", "train": 900, "held_out": 99, "text": "1a2b"},
    "runs": {
        "ddp": run(1e-3, 0.02, curve(5, 1e8, [4.6, 3.0, 2.8, 2.7, 2.6])),
        "streaming": run(2e-3, 0.31, curve(50, 2e6, [4.6, 2.61, 2.5, 2.4, 2.3])),
    },
    "alone": {"forward": 0.03, "backward": 0.06, "update": 0.01, "values": 7},
    "sim": [
        {"way": way, "ranks": ranks, "rate": rate, "step": ranks * step}
        for rate, step in (("100Mbit/s", 0.01), ("1Gbit/s", 0.001))
        for ranks in (64, 1024)
        for way in ("ddp", "streaming")
    ],
}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_says_what_an_algorithm_has_reached() -> None:
    _, _, ddp, streaming = tables.trained(RESULTS).splitlines()
    assert cells(ddp) == [
        *("DDP", "0.001", "20", "2 s", "400 MB", "80.0 Mbit"),
        *("3.000", "2.800", "2.600", "40 s", "400 MB"),
    ]
    assert cells(streaming) == [
        *("Streaming DiLoCo", "0.002", "200", "200 ms", "8 MB", "1.6 Mbit"),
        *("2.610", "2.500", "2.300", "20 s", "4 MB"),
    ]


def test_a_loss_that_is_not_reached_is_a_dash() -> None:
    runs = {**RESULTS["runs"], "diloco": {**RESULTS["runs"]["ddp"], "curve": curve(5, 1e6, [4.6, 3, 2.9])}}
    line = tables.trained({**RESULTS, "runs": runs}).splitlines()[-1]
    assert cells(line)[-3:] == ["–", "–", "–"]


def test_losses_lie_between_the_points() -> None:
    found = RESULTS["runs"]["ddp"]["curve"]
    assert tables.at(found, "seconds", 15) == pytest.approx(2.9)
    assert tables.at(found, "sent", 3.5e8) == pytest.approx(2.65)
    assert tables.at(found, "seconds", 41) is None


def test_the_simulated_table_has_a_line_for_each_network() -> None:
    head, _, *lines = tables.simulated(RESULTS).splitlines()
    assert cells(head) == ["links", "ranks", "DDP", "Streaming DiLoCo"]
    assert [cells(line)[:3] for line in lines] == [
        *(["100Mbit/s", "64", "640 ms"], ["100Mbit/s", "1,024", "10.2 s"]),
        *(["1Gbit/s", "64", "64 ms"], ["1Gbit/s", "1,024", "1.02 s"]),
    ]


def test_the_page_says_how_busy_the_machine_was() -> None:
    page = tables.page(RESULTS)
    assert "a processor, 2 cores" in page
    assert "7 values in the model, 900 characters to train on and 99 held out" in page
    assert "DDP 2 %, Streaming DiLoCo 31 %" in page
    assert tables.DOUBT in page
    idle = {name: {**run, "others": 0.09} for name, run in RESULTS["runs"].items()}
    assert tables.DOUBT not in tables.page({**RESULTS, "runs": idle})
    assert "100 ms of each step" in page
    only = tables.page({**RESULTS, "runs": {}})
    assert "Measured" not in only
    assert "Simulated" in only


def test_the_figure_has_each_curve_by_time_and_by_bytes() -> None:
    drawn = ElementTree.fromstring(curves.draw(RESULTS["runs"]))
    paths = [one for one in drawn.iter("{http://www.w3.org/2000/svg}path") if one.get("clip-path")]
    assert [one.get("stroke") for one in paths] == [
        curves.COLOURS[name] for name in ("ddp", "ddp", "streaming", "streaming")
    ]
    for path, count in zip(paths, (5, 4, 5, 4), strict=True):
        places = [tuple(map(float, place.split())) for place in str(path.get("d"))[1:].split("L")]
        assert len(places) == count
        for (x, y), (right, below) in pairwise(places):
            assert right > x
            assert below > y, "a smaller loss lies lower"
    said = {one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {WAYS["ddp"].label, WAYS["streaming"].label, "seconds"} <= said


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e4))
def test_ticks_are_few_and_within(low: float, width: float) -> None:
    found = curves.ticks(low, low + width)
    assert 3 <= len(found) <= 9
    assert all(low - 1e-6 * width <= one <= low + width * (1 + 1e-6) for one in found)
