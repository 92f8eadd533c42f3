"""What a simulation has found, as a table and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from aiodist.observe.figures import size as bytes_text
from aiodist.sim.network import time_text
from aiodist.sim.world import SimWorld


def facts(world: SimWorld, seconds: float, memory: int) -> dict[str, Any]:
    """All figures, as plain values; times in seconds.

    Args:
        seconds: that the simulation took; memory: resident bytes of its process at most.
    """
    rows: list[dict[str, Any]] = []
    for (op, ranks, nbytes, how), row in world.ledger.rows.items():
        total = row.waited + row.moved
        rows.append(
            {
                "operation": op,
                "ranks": ranks,
                "bytes": nbytes,
                "algorithm": how,
                "count": row.count,
                "mean": total / max(1, row.ranks),
                "total": total / max(1, row.ranks) * max(1, row.count),
                "longest": row.longest,
                "waiting": row.waited / total if total else 0.0,
                "link_busy": row.busy,
                "slowest_link": row.slowest,
            }
        )
    rows.sort(key=lambda row: -row["total"])
    return {
        "network": world.network.describe(),
        "ranks": world.network.size,
        "virtual_seconds": world.engine.now,
        "operations": world.ledger.operations,
        "rows": rows,
        "took_seconds": seconds,
        "memory_bytes": memory,
    }


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    head = ("operation", "ranks", "bytes", "algorithm", "count", "mean", "total", "waiting", "slowest link")
    lines = [head]
    for row in found["rows"]:
        link = "" if row["slowest_link"] < 0 else f"host {row['slowest_link']}"
        lines.append(
            (
                *(row["operation"], str(row["ranks"]), bytes_text(row["bytes"]), row["algorithm"]),
                *(str(row["count"]), time_text(row["mean"]), time_text(row["total"])),
                *(f"{100 * row['waiting']:.0f} %", link),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    left = (0, 3, 8)
    text = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    took = f"worked out in {time_text(found['took_seconds'])} with {bytes_text(found['memory_bytes'])}"
    return "\n".join(
        [
            found["network"],
            "",
            *text,
            "",
            f"virtual time {time_text(found['virtual_seconds'])}, {found['operations']} operations; {took}",
        ]
    )
