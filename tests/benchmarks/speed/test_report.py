"""The report, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.peers import AIODIST, Found
from benchmarks.harness.results import Results
from benchmarks.speed.command import parse, write


def some_results() -> Results:
    results = Results(facts={"cpu": "a processor", "cores": 2, "caches": {"L1d": 32 << 10}})
    for peer in ("aiodist", "gloo"):
        results.add("all_reduce", "all_reduce", peer, [1e-3, 2e-3, 3e-3], ranks=2, nbytes=8, dtype="float32")
    results.add("store", "store_get", "aiodist", [1e-4])
    results.note("without mpich: no launcher")
    return results


def test_the_folder_has_a_page_and_the_figures(tmp_path: Path) -> None:
    write(some_results(), Found({"aiodist": AIODIST}, []), tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert page.count("a processor, 2 cores available, L1d 32 KiB") == 2  # beside the goals, too
    assert "| 8 B  |    2 ms | 2 ms |" in page
    assert "store: store_get" in page
    assert "- without mpich: no launcher" in page
    assert "\\*" not in page
    figures = json.loads((tmp_path / "results.json").read_text())
    assert [record["value"] for record in figures["records"]] == [2e-3, 2e-3, 1e-4]
    assert figures["records"][0]["busbw"] == pytest.approx(8 / 2e-3)


def test_figures_of_a_busy_machine_are_marked(tmp_path: Path) -> None:
    results = some_results()
    results.add("all_reduce", "all_reduce", "aiodist", [1e-3], ranks=2, nbytes=64, dtype="float32")
    results.add("store", "store_set", "aiodist", [1e-4])
    results.doubt_since(3, "this machine is busy: make")
    write(results, Found({"aiodist": AIODIST}, []), tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert "2 of 5 figures are marked so: this machine" in page
    assert "this machine is busy: make." in page
    assert "| 8 B     |" in page and "| 64 B \\* |" in page
    assert "store: store_get  " in page and "store: store_set \\*" in page
    figures = json.loads((tmp_path / "results.json").read_text())
    assert [bool(record["doubt"]) for record in figures["records"]] == [False] * 3 + [True] * 2
    assert figures["doubt"] == ""  # the whole run's


def test_quick_is_smaller_and_the_environment_names_prefixes() -> None:
    options, settings = parse(
        ["--quick", "--ranks", "2", "--only", "tcp"], {"BENCHMARKS_MPICH": "/opt/mpich"}
    )
    assert (settings.quick, settings.ranks, settings.only) == (True, (2,), ("tcp",))
    assert (options.mpich, options.openmpi) == ("/opt/mpich", None)
    _, full = parse(["--sizes", "1MiB", "8"], {})
    assert (full.sizes, full.ranks, full.quick) == ((8, 1 << 20), (2, 4, 8), False)


@pytest.mark.parametrize("argv", [["--ranks", "1"], ["--sizes", "big"], ["--only", "all"]])
def test_a_command_line_without_meaning_is_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(argv, {})
