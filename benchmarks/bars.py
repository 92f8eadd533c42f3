"""The project's goals, as a table, and whether a run meets them. Pure.

A goal over several sizes or operations is as good as its worst one. In brackets in the report: the wish,
which goes further than the goal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiodist.bench.measures import show_size, show_value
from aiodist.bench.table import table
from benchmarks.results import Record, Results

_KIB, _MIB = 1 << 10, 1 << 20
_ALL = (0, 1 << 62)
_OTHERS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all")


@dataclass(frozen=True)
class Compared:
    """aiodist's time beside another's, in the same suite and at the same size.

    Args:
        title: for people.
        suite: where both were measured; '': the suite is named like the operation.
        what: operations.
        ours: which of aiodist's lines.
        theirs: whose line it is compared with.
        goal: the ratio that is needed.
        wish: the ratio that would be better still, if any.
        faster: whether the ratio is theirs / ours (at least); else ours / theirs (at most).
        ranks: world size; 0 for what has none, or one only.
        sizes: smallest and largest size.
        dtypes: which dtypes; empty: whatever was measured.
    """

    title: str
    what: tuple[str, ...]
    theirs: str
    goal: float
    wish: float | None = None
    faster: bool = True
    ranks: int = 2
    sizes: tuple[int, int] = _ALL
    ours: str = "aiodist"
    suite: str = ""
    dtypes: tuple[str, ...] = ()

    def values(self, results: Results) -> Iterable[tuple[float, str]]:
        """(ratio, where) for everything that both have measured."""
        for mine in self._records(results, self.ours):
            for other in self._records(results, self.theirs):
                if (mine.what, mine.nbytes, mine.dtype) == (other.what, other.nbytes, other.dtype):
                    ratio = other.value / mine.value if self.faster else mine.value / other.value
                    yield ratio, _where(mine, len(self.what) > 1)

    def _records(self, results: Results, peer: str) -> list[Record]:
        return [
            record
            for record in results.select(peer=peer)
            if record.what in self.what
            and record.suite == (self.suite or record.what)
            and record.ranks == (self.ranks or record.ranks)
            and self.sizes[0] <= record.nbytes <= self.sizes[1]
            and (not self.dtypes or record.dtype in self.dtypes)
        ]

    def show(self, value: float) -> str:
        """A ratio."""
        return show_value(value, "ratio")


@dataclass(frozen=True)
class Limited:
    """A figure of aiodist's alone that must not be larger than something.

    Args:
        title: for people.
        suite: where it was measured.
        what: its names there.
        goal: what it may be at most.
        wish: what would be better still, if anything.
    """

    title: str
    suite: str
    what: tuple[str, ...]
    goal: float
    wish: float | None = None
    unit: str = "s"
    faster: bool = False

    def values(self, results: Results) -> Iterable[tuple[float, str]]:
        """(figure, where) for what was measured."""
        for record in results.select(suite=self.suite, peer="aiodist", unit=self.unit):
            if record.what in self.what:
                yield record.value, record.what if len(self.what) > 1 else ""

    def show(self, value: float) -> str:
        """A figure in its unit."""
        return show_value(value, self.unit)


Bar = Compared | Limited

_REDUCE = ("all_reduce",)
_MESSAGES = ("p2p",)
BARS: tuple[Bar, ...] = (
    Compared(
        "all_reduce ≤ 1 KiB: time / Open MPI",
        _REDUCE,
        "openmpi",
        6,
        3,
        faster=False,
        sizes=(0, _KIB),
    ),
    Compared("all_reduce ≤ 1 KiB: gloo's time / ours", _REDUCE, "gloo", 20, sizes=(0, _KIB)),
    Compared(
        "all_reduce 64 KiB: time / Open MPI",
        _REDUCE,
        "openmpi",
        2,
        1,
        faster=False,
        sizes=(64 * _KIB, 64 * _KIB),
    ),
    Compared("all_reduce 1 MiB: speed / Open MPI", _REDUCE, "openmpi", 1, sizes=(_MIB, _MIB)),
    Compared("… from pg.empty", _REDUCE, "openmpi", 1.8, ours="aiodist-empty", sizes=(_MIB, _MIB)),
    Compared(
        "all_reduce 16 MiB: speed / Open MPI", _REDUCE, "openmpi", 0.8, 1.2, sizes=(16 * _MIB, 16 * _MIB)
    ),
    Compared("… from pg.empty", _REDUCE, "openmpi", 1.5, ours="aiodist-empty", sizes=(16 * _MIB, 16 * _MIB)),
    Compared(
        "all_reduce 64, 256 MiB: speed / Open MPI",
        _REDUCE,
        "openmpi",
        2.5,
        3.5,
        sizes=(64 * _MIB, 256 * _MIB),
    ),
    Compared("… speed / gloo", _REDUCE, "gloo", 4, sizes=(64 * _MIB, 256 * _MIB)),
    Compared(
        "… from pg.empty, speed / Open MPI",
        _REDUCE,
        "openmpi",
        4,
        6,
        ours="aiodist-empty",
        sizes=(64 * _MIB, 256 * _MIB),
    ),
    Compared(
        "… from pg.empty, speed / unsynchronised passes",
        _REDUCE,
        "passes",
        0.8,
        ours="aiodist-empty",
        sizes=(64 * _MIB, 256 * _MIB),
    ),
    Compared(
        "other collectives ≥ 64 MiB: speed / Open MPI", _OTHERS, "openmpi", 1.5, sizes=(64 * _MIB, _ALL[1])
    ),
    Compared("other collectives ≥ 1 MiB: speed / gloo", _OTHERS, "gloo", 3, sizes=(_MIB, _ALL[1])),
    Compared("4 ranks, all_reduce, every size: speed / gloo", _REDUCE, "gloo", 5, ranks=4),
    Compared(
        "4 ranks, all_reduce ≥ 64 MiB: speed / Open MPI",
        _REDUCE,
        "openmpi",
        1.5,
        ranks=4,
        sizes=(64 * _MIB, _ALL[1]),
    ),
    *(
        Compared(
            f"{dtype} all_reduce ≥ 1 MiB: busbw / gloo",
            _REDUCE,
            "gloo",
            1,
            3,
            suite="halves",
            dtypes=(dtype,),
            sizes=(_MIB, _ALL[1]),
        )
        for dtype in ("float16", "bfloat16")
    ),
    Compared(
        "TCP only ≤ 1 MiB: speed / gloo", _REDUCE, "gloo", 2, ours="aiodist-tcp", suite="tcp", sizes=(0, _MIB)
    ),
    Compared(
        "TCP only > 1 MiB: speed / gloo",
        _REDUCE,
        "gloo",
        1.2,
        ours="aiodist-tcp",
        suite="tcp",
        sizes=(_MIB + 1, _ALL[1]),
    ),
    Compared(
        "TCP only > 1 MiB: speed / raw sockets",
        _REDUCE,
        "sockets",
        0.9,
        ours="aiodist-tcp",
        suite="tcp",
        sizes=(_MIB + 1, _ALL[1]),
    ),
    Limited(
        "all_reduce beside NumPy products: both / what the cores allow",
        "overlap",
        ("numpy 1×", "numpy 3×"),
        1.3,
        unit="ratio",
    ),
    Limited(
        "all_reduce beside pure Python: both / what the cores allow",
        "overlap",
        ("python 1×", "python 3×"),
        2,
        unit="ratio",
    ),
    Compared(
        "messages ≤ 1 KiB, half there and back: time / Open MPI",
        _MESSAGES,
        "openmpi",
        6,
        3,
        faster=False,
        sizes=(0, _KIB),
    ),
    Compared("messages ≤ 1 KiB: speed / gloo", _MESSAGES, "gloo", 15, sizes=(0, _KIB)),
    Compared(
        "messages ≤ 1 KiB: time / asyncio's streams",
        _MESSAGES,
        "streams",
        0.5,
        faster=False,
        sizes=(0, _KIB),
    ),
    Compared("messages 64 MiB: speed / Open MPI", _MESSAGES, "openmpi", 1, sizes=(64 * _MIB, 64 * _MIB)),
    Compared("64 all_reduces of 1 KiB in flight: rate / gloo", ("inflight",), "gloo", 50),
    Limited("lateness of a 1 ms ticker, p99", "lateness", ("p99",), 5e-3, 2e-3),
    Compared(
        "init + first all_reduce, 16 ranks: time / gloo",
        ("init + first all_reduce",),
        "gloo",
        1,
        faster=False,
        ranks=16,
        suite="init",
    ),
    Compared("store get: rate / TCPStore", ("store_get",), "tcpstore", 2, ranks=0, suite="store"),
    Compared("store add: rate / TCPStore", ("store_add",), "tcpstore", 1.3, ranks=0, suite="store"),
    Limited("1,000 clients connect and pass a barrier", "store", ("1000 clients",), 1.0),
    Compared(
        "one-collective job: aiodist run / torchrun",
        ("launch to exit",),
        "gloo",
        1 / 3,
        faster=False,
        suite="launch",
    ),
    Compared(
        "one-collective job: aiodist run / mpirun (Open MPI)",
        ("launch to exit",),
        "openmpi",
        0.7,
        faster=False,
        suite="launch",
    ),
    Limited("memory of a rank above its tensors, 4 ranks", "memory", ("above tensors",), 16 << 20, unit="B"),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one goal. `value` None: not measured in this run."""

    bar: Bar
    value: float | None
    where: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met."""
        return self._reaches(self.bar.goal)

    @property
    def wished(self) -> bool | None:
        """Whether the wish is met, too; None where there is none."""
        return None if self.bar.wish is None else self._reaches(self.bar.wish)

    def _reaches(self, mark: float) -> bool | None:
        if self.value is None:
            return None
        return self.value >= mark if self.bar.faster else self.value <= mark


def evaluate(results: Results, bars: Sequence[Bar] = BARS) -> list[Outcome]:
    """Each goal with its worst value."""
    outcomes = []
    for bar in bars:
        found = list(bar.values(results))
        if not found:
            outcomes.append(Outcome(bar, None))
            continue
        value, where = min(found) if bar.faster else max(found)
        outcomes.append(Outcome(bar, value, where if len(found) > 1 else ""))
    return outcomes


def bars_table(outcomes: Sequence[Outcome]) -> str:
    """The summary as Markdown."""
    rows = []
    for outcome in outcomes:
        bar = outcome.bar
        sign = "≥" if bar.faster else "≤"
        goal = f"{sign} {bar.show(bar.goal)}" + (f" [{bar.show(bar.wish)}]" if bar.wish is not None else "")
        value = "not measured" if outcome.value is None else bar.show(outcome.value)
        verdict = {None: "", True: "yes", False: "no"}[outcome.met]
        if outcome.wished:
            verdict = "yes, and the wish"
        rows.append([bar.title, goal, value, outcome.where, verdict])
    return table(["goal", "needed [wished]", "measured", "at its worst", "met"], rows)


def _where(record: Record, named: bool) -> str:
    parts = [record.what if named else "", show_size(record.nbytes) if record.nbytes else ""]
    return " ".join(filter(None, parts))
