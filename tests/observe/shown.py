"""What a page shows after changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def apply(shown: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows after a change, as `page.whole` has it: what the page's script does."""
    rows = {row[0]: list(row) for row in shown["rows"] if row[0] not in changed.get("gone", ())}
    rows |= {row[0]: list(row) for row in changed.get("rows", ())}
    for rank, *pairs in changed.get("cells", ()):
        for column, value in zip(pairs[::2], pairs[1::2], strict=True):
            rows[rank][column] = value
    parts = {name: value for name, value in changed.items() if name not in ("cells", "rows", "gone")}
    return {**shown, **parts, "rows": [rows[rank] for rank in sorted(rows)]}
