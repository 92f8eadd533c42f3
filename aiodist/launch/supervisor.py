"""A pure machine that decides when to stop the workers of one node, and with which signal.

    running ──first failure, here or elsewhere──▶ grace ──it is over──▶ stopping ──all ended──▶ over
       └──────────────── operator's signal ─────────┴─────────────────────▲

A worker that has ended and may be started again is *away*: nothing follows from it until it is back, or
ended for good. Nobody comes back once the rest is asked to end.

In the grace nobody is asked anything: the others say by themselves what they noticed, and end. A
failure whose traceback only reports another rank's trouble is a *symptom*: its culprit is about to end
by itself, and gets a little longer for that, so that the verdict can name it. Later failures may
shorten the grace, and never extend it.

Stopping climbs a ladder: SIGTERM, and SIGKILL after the shutdown timeout; Ctrl-C starts one rung
lower, with SIGINT. Each further signal of the operator climbs one rung at once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

# Seconds from a failure to SIGTERM for the rest. A group tells its members of a death within
# milliseconds; a traceback and the end of an interpreter take a tenth of a second. Too short to be felt.
FAILURE_GRACE = 0.3
SYMPTOM_GRACE = 0.5
INTERRUPT_GRACE = 10.0


@dataclass(frozen=True)
class Ended:
    """The end of a worker. `failed`: not with code 0; `symptom`: because of another rank."""

    local_rank: int
    failed: bool
    symptom: bool = False


@dataclass(frozen=True)
class Away:
    """The bad end of a worker that may be started again; `Back` or `Ended` follows."""

    local_rank: int


@dataclass(frozen=True)
class Back:
    """The new start of a worker that was away."""

    local_rank: int


@dataclass(frozen=True)
class Asked:
    """A signal that the operator sent to the agent."""

    signum: int


@dataclass(frozen=True)
class Elsewhere:
    """The failure or loss of another node's part; `stopped`: the operator ends it."""

    stopped: bool = False


@dataclass(frozen=True)
class Tick:
    """A point in time that `Wake` asked for."""


Event = Ended | Away | Back | Asked | Elsewhere | Tick


@dataclass(frozen=True)
class Send:
    """The order to send this signal to these workers, by local rank."""

    signum: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Wake:
    """The order to send a Tick at this time."""

    at: float


@dataclass(frozen=True)
class Over:
    """The end: all workers have ended, and nothing follows."""


Action = Send | Wake | Over


class Supervisor:
    """The machine of one node. Times are seconds of any monotonic clock.

    Args:
        count: workers of this node, local ranks 0 to count - 1.
        shutdown_timeout: seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, count: int, shutdown_timeout: float) -> None:
        self._alive = set(range(count))
        self._away: set[int] = set()
        self._patience = shutdown_timeout
        self._ladder: list[tuple[int, float]] = []  # (signal, seconds until the next) still to come
        self._next_rung: float | None = None
        self._stop_at: float | None = None  # the end of the grace
        self.stopping = False

    @property
    def alive(self) -> tuple[int, ...]:
        """Local ranks that still run."""
        return tuple(sorted(self._alive))

    @property
    def over(self) -> bool:
        """Whether all have ended, and nobody comes back."""
        return not self._alive and not self._away

    def may_return(self, local_rank: int) -> bool:
        """Whether a worker that is away can still be started again."""
        return local_rank in self._away and self._stop_at is None

    def handle(self, event: Event, now: float) -> list[Action]:
        """The actions that `event` asks for, in this order."""
        match event:
            case Ended():
                return self._ended(event, now)
            case Away(local_rank):
                return self._leave(local_rank)
            case Back(local_rank):
                self._away.discard(local_rank)
                self._alive.add(local_rank)
                return []
            case Asked(signum):
                return self._asked(signum, now)
            case Elsewhere(stopped):
                return self._stop(now) if stopped else self._grace(now + FAILURE_GRACE)
            case Tick():
                return self._tick(now)

    def _ended(self, event: Ended, now: float) -> list[Action]:
        if event.local_rank not in self._alive | self._away:
            return []
        self._alive.discard(event.local_rank)
        self._away.discard(event.local_rank)
        if self.over:
            return self._end()
        if not event.failed:
            return []
        return self._grace(now + (SYMPTOM_GRACE if event.symptom else FAILURE_GRACE))

    def _leave(self, local_rank: int) -> list[Action]:
        if self.stopping:
            return self._ended(Ended(local_rank, failed=True), 0.0)
        if local_rank in self._alive:
            self._alive.discard(local_rank)
            self._away.add(local_rank)
        return []

    def _end(self) -> list[Action]:
        self._next_rung = self._stop_at = None
        return [Over()]

    def _grace(self, until: float) -> list[Action]:
        """Stop the rest at this time, if nothing does it before."""
        if self.stopping or self.over or (self._stop_at is not None and self._stop_at <= until):
            return []
        self._stop_at = until
        return [Wake(until)]

    def _asked(self, signum: int, now: float) -> list[Action]:
        if self.stopping:
            return self._climb(now)
        return self._stop(now, interrupt=signum == signal.SIGINT)

    def _stop(self, now: float, *, interrupt: bool = False) -> list[Action]:
        if self.stopping or self.over:
            return []
        self.stopping = True
        self._stop_at = None
        self._away.clear()
        if not self._alive:
            return self._end()
        self._ladder = [(signal.SIGTERM, self._patience), (signal.SIGKILL, 0.0)]
        if interrupt:
            self._ladder.insert(0, (signal.SIGINT, min(INTERRUPT_GRACE, self._patience)))
        return self._climb(now)

    def _climb(self, now: float) -> list[Action]:
        if not self._ladder or not self._alive:
            return []
        signum, patience = self._ladder.pop(0)
        actions: list[Action] = [Send(signum, self.alive)]
        self._next_rung = now + patience if self._ladder else None
        if self._next_rung is not None:
            actions.append(Wake(self._next_rung))
        return actions

    def _tick(self, now: float) -> list[Action]:
        if self._stop_at is not None and now >= self._stop_at:
            return self._stop(now)
        if self._next_rung is not None and now >= self._next_rung:
            return self._climb(now)
        return []
