"""Curves of a run as PNG: latency and busbw by size, log–log, with the limit of memory drawn in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiodist.cli.bench.measures import show_size
from benchmarks.harness.cases import SWEPT
from benchmarks.harness.results import Record, Results
from benchmarks.speed.report import groups

_COLOURS = {
    "aiodist": "#c0392b",
    "aiodist-empty": "#e67e22",
    "aiodist-tcp": "#c0392b",
    "gloo": "#2980b9",
    "openmpi": "#27ae60",
    "mpich": "#8e44ad",
}
_LIMITS = {
    "passes": "NumPy passes, no waiting",
    "passes-staged": "the same, staged",
    "sockets": "raw sockets, both ways",
}


def draw(results: Results, folder: Path) -> list[str]:
    """Write one PNG for each sweep; their names. Nothing where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        results.note("no curves: matplotlib is not installed")
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = []
    for suite in (*SWEPT, "halves", "tcp"):
        for (what, dtype, ranks), records in groups(results, suite).items():
            if len({record.nbytes for record in records}) < 2:
                continue
            figure, (latency, bandwidth) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
            tcp = "-tcp" if suite == "tcp" else ""
            figure.suptitle(f"{what} {dtype}{' over TCP' if tcp else ''}, {ranks} ranks")
            _lines(latency, records, "time per operation, s", lambda record: record.value)
            _lines(bandwidth, records, "busbw, GB/s", lambda record: record.busbw / 1e9)
            name = f"{what}{tcp}-{dtype}-{ranks}.png"
            figure.savefig(folder / name, dpi=110)
            plt.close(figure)
            names.append(name)
    return names


def _lines(axes: Any, records: list[Record], label: str, value: Any) -> None:
    for peer in dict.fromkeys(record.peer for record in records):
        mine = sorted((record.nbytes, value(record)) for record in records if record.peer == peer)
        limit = peer in _LIMITS
        axes.plot(
            [size for size, _ in mine],
            [figure for _, figure in mine],
            "--" if limit else "o-",
            color="#555555" if limit else _COLOURS.get(peer),
            label=_LIMITS.get(peer, peer),
            markersize=4,
        )
    sizes = sorted({record.nbytes for record in records})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [show_size(size) for size in sizes], rotation=45, ha="right")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()
