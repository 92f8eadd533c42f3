"""Tables that are Markdown and align."""

from __future__ import annotations

from aiodist.cli.bench.table import table


def test_columns_align() -> None:
    lines = table(["size", "time"], [["8 B", "1.5 µs"], ["64 KiB", "12 µs"]]).splitlines()
    assert lines == [
        "| size   |   time |",
        "| ------ | -----: |",
        "| 8 B    | 1.5 µs |",
        "| 64 KiB |  12 µs |",
    ]


def test_a_table_may_have_no_rows() -> None:
    assert table(["a"], []) == "| a   |\n| --- |"
