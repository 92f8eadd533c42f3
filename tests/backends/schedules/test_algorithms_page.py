"""docs/algorithms.md and its table are true: the choices are those of `select`. A script that writes them."""

from __future__ import annotations

import re
from pathlib import Path

from aiodist.backends.schedules import costs
from aiodist.backends.schedules.select import ALGORITHMS, algorithm
from aiodist.base.types import Kind

DOCS = Path(__file__).parents[3] / "docs"
PAGE, CHOICES = DOCS / "algorithms.md", DOCS / "algorithms-table.md"
SIZES = (2, 3, 4, 5, 8, 16, 17, 64)
TABLE = re.compile(r"(<!-- choices: begin[^\n]*\n)(.*?)(<!-- choices: end -->)", re.DOTALL)


def choices(kind: Kind, size: int) -> list[tuple[int, str]]:
    """The least bytes and the name of each choice. A change and back within an octave is not seen."""
    found = [(0, algorithm(kind, size, 0))]
    for high in [1 << i for i in range(41)]:
        while algorithm(kind, size, high) != found[-1][1]:
            low, above = found[-1][0], high
            while above - low > 1:
                middle = (low + above) // 2
                if algorithm(kind, size, middle) == found[-1][1]:
                    low = middle
                else:
                    above = middle
            found.append((above, algorithm(kind, size, above)))
    return found


def amount(nbytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}" if nbytes < 1000 * size else f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def table() -> str:
    lines = ["| Operation | Ranks | Choice |", "|---|---|---|"]
    for kind in ALGORITHMS:
        if kind is Kind.new_group:
            continue
        rows: dict[str, list[int]] = {}
        for size in SIZES:
            first, *later = choices(kind, size)
            cells = [f"`{first[1]}`", *(f"from {amount(nbytes)} `{name}`" for nbytes, name in later)]
            rows.setdefault(", ".join(cells), []).append(size)
        for choice, sizes in rows.items():
            lines.append(f"| {kind.name} | {', '.join(map(str, sizes))} | {choice} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_what_select_chooses() -> None:
    match = TABLE.search(CHOICES.read_text(encoding="utf-8"))
    assert match is not None
    assert match[2] == table(), f"run python {Path(__file__).name}; the table should be:\n{table()}"


def test_every_algorithm_is_described_under_its_operation() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind, algorithms in ALGORITHMS.items():
        if kind is Kind.new_group:
            continue
        heading = re.search(rf"^## (?:\w+ and )?{kind.name}\b.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
        assert heading is not None, kind
        described = re.findall(r"^\| `(\w+)` \|", heading[0], re.MULTILINE)
        assert sorted(described) == sorted(algorithms)


def test_the_constants_are_those_of_the_model() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert (
        f"rounds · {costs.ROUND_NS / 1000:g} µs + further messages · {costs.MESSAGE_NS / 1000:g} µs"
        f" + bytes · {costs.BYTE_NS:g} ns + copied bytes · {costs.COPY_NS:g} ns"
    ) in text
    assert f"`bruck` (up to {amount(costs.WRAP_LIMIT)})" in text
    assert f"at most {amount(costs.SPREAD_LIMIT)} a rank" in text


if __name__ == "__main__":
    page = CHOICES.read_text(encoding="utf-8")
    CHOICES.write_text(TABLE.sub(lambda match: match[1] + table() + match[3], page), encoding="utf-8")
