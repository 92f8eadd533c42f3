"""The README: its links lead somewhere, CI finds its commands, its figures are measured ones."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 85
    first = TEXT.index("## Try it")
    assert TEXT.index("train.svg") < first and TEXT.index("```python") < first


def test_ci_finds_the_two_commands() -> None:
    lines = TEXT.splitlines()
    job = [line for line in lines if line.endswith("aiodist run --nproc-per-node 4 examples/train_digits.py")]
    assert len(job) == len([line for line in lines if "/pytest -q " in line]) == 1


def test_figures_are_those_of_the_pages() -> None:
    """Columns: aiodist, gloo, Open MPI; of the first curve: aiodist, aiodist-empty, gloo, Open MPI."""
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("performance*.md")))
    for row, columns, what in (
        ("all_reduce", (0, 1, 2), "all_reduce of 8 bytes"),
        ("64 MiB", (0, 2, 3), "all_reduce of 64 MiB"),
    ):
        measured = re.search(rf"^\| {row} +\|(.*)\|$", pages, re.MULTILINE)
        shown = re.search(rf"^\| {what}.*?\|(.*)\|$", TEXT, re.MULTILINE)
        assert measured and shown
        cells = [measured[1].split("|")[column].split() for column in columns]
        for (number, unit), mine in zip(cells, shown[1].split("|"), strict=True):
            digits = mine.split()[0]
            half = 0.5 * 10 ** -len(digits.partition(".")[2])  # of the last digit that is shown
            assert abs(float(number) - float(digits)) <= half + 1e-9 and mine.split()[1] == unit
    failures = (ROOT / "docs" / "failures.md").read_text()
    table = failures + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("failures-*.md")))
    killed = re.search(
        r"^\| 1 \| SIGKILL of any rank.*?\| 2 \| 167 \| ([\d.]+) \| ([\d.]+) \|", table, re.MULTILINE
    )
    assert killed and f"{killed[1]} ms, p99 {killed[2]}" in TEXT
