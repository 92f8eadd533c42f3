"""The metrics of a job: their names, units, labels and meanings, as a table. Pure.

Names are OpenTelemetry's; those of Prometheus follow from them by OpenTelemetry's own rule: dots become
underscores, the unit is written out at the end, and after it `_total` for what only grows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_WRITTEN = {"s": "_seconds", "By": "_bytes"}


class MetricKind(enum.Enum):
    """The behaviour of a metric's values."""

    counter = "it only grows"
    gauge = "it goes up and down"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric; there is one object of each.

    Args:
        name: OpenTelemetry's, 'aiodist.op.time'.
        kind: of its values.
        unit: 's', 'By', or what is counted, in braces: '{operation}'.
        labels: by which its values are told apart; that of the job comes on top.
        meaning: in one sentence.
        together: makes one value of several that have the same labels.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    together: Callable[[Iterable[float]], float] = sum

    @property
    def prometheus(self) -> str:
        """The metric's name in Prometheus, 'aiodist_op_time_seconds_total'."""
        return self.stem + ("_total" if self.kind is MetricKind.counter else "")

    @property
    def stem(self) -> str:
        """The metric's name in Prometheus without '_total'."""
        return self.name.replace(".", "_") + _WRITTEN.get(self.unit, "")

    @property
    def base_unit(self) -> str:
        """'seconds', 'bytes', or ''."""
        return _WRITTEN.get(self.unit, "")[1:]


def _counter(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Metric:
    return Metric(f"aiodist.{name}", MetricKind.counter, unit, labels, meaning)


def _gauge(
    name: str,
    unit: str,
    labels: tuple[str, ...],
    meaning: str,
    together: Callable[[Iterable[float]], float] = sum,
) -> Metric:
    return Metric(f"aiodist.{name}", MetricKind.gauge, unit, labels, meaning, together)


_OP = ("op", "group")
_RANK = ("host", "rank")

JOB_INFO = _gauge("job.info", "", ("script",), "1; says what the ranks of the job run")
START = _gauge("start.time", "s", (), "when the first rank began, in seconds since 1970", min)
WORLD_SIZE = _gauge("world.size", "{rank}", (), "ranks that the job has")
EPOCH = _gauge("epoch", "", (), "the newest epoch that a rank has reported")
RANKS = _gauge("ranks", "{rank}", ("state",), "ranks by what they do; `unseen`: nothing is seen of them")
VERDICTS = _gauge(
    "verdicts", "{verdict}", ("kind",), "present verdicts: why the job stands still, or is slow"
)
EVENTS = _counter("events", "{event}", (), "errors that nobody awaits, and other events")

OPS = _counter("ops", "{operation}", _OP, "operations issued, each rank's counted")
FAILED = _counter("ops.failed", "{operation}", _OP, "operations that failed")
IN_FLIGHT = _gauge("ops.in_flight", "{operation}", _OP, "operations that loops sleep for, 64 a rank at most")
OLDEST = _gauge("op.oldest", "s", (), "age of the operation that has been pending longest; 0: none is", max)
CALLS = _gauge(
    "calls",
    "{call}",
    (*_RANK, "state"),
    "calls without an answer: `asked` of others by the rank, `served` by it for others",
)
PAYLOAD = _counter("op.payload", "By", _OP, "bytes of the tensors of operations issued, each rank's counted")
TIMED = _counter("ops.timed", "{operation}", _OP, "operations in `op.time`: those for which the loop slept")
TIME = _counter(
    "op.time",
    "s",
    (*_OP, "phase"),
    "time of operations that have ended: `waiting` until all peers had arrived, `moving` from then on",
)

WAITING = _counter("waiting", "s", _RANK, "time that the rank has waited for peers, in operations that ended")
LAST = _counter("last_arrivals", "{operation}", _RANK, "collectives to which the rank came last")
LOST = _counter("lost.time", "s", _RANK, "time that the other ranks together waited in these for it")
COMPARED = _counter("arrivals.compared", "{operation}", (), "collectives of which all arrivals were seen")

LAG = _gauge("loop.lag", "s", _RANK, "longest delay of the event loop in the last 10 s", max)
MEMORY = _gauge("memory", "By", _RANK, "resident memory of the process")
CPU = _counter("cpu", "s", _RANK, "processor time of the process")

OFFSET = _gauge(
    "clock.offset",
    "s",
    ("host",),
    "by how much the host's time of day was ahead of that of the lowest rank's host, when its rank began",
    max,
)
ERROR = _gauge("clock.error", "s", ("host",), "by how much that may be wrong, from the pings", max)

SENT = _counter("tcp.sent", "By", (), "bytes sent over TCP that the peers have acknowledged")
BUSY = _counter("tcp.busy", "s", (), "time in which TCP connections had bytes under way, added up")
AGAIN = _counter("tcp.retransmits", "{segment}", (), "TCP segments that were sent again")
RTT = _gauge("tcp.rtt", "s", (), "the longest round trip of a TCP connection between ranks, smoothed", max)

CATALOG = (
    *(JOB_INFO, START, WORLD_SIZE, EPOCH, RANKS, VERDICTS, EVENTS),
    *(OPS, FAILED, IN_FLIGHT, OLDEST, PAYLOAD, TIMED, TIME, CALLS),
    *(WAITING, LAST, LOST, COMPARED),
    *(LAG, MEMORY, CPU, OFFSET, ERROR),
    *(SENT, BUSY, AGAIN, RTT),
)
"""All metrics, in the order in which they are shown."""
