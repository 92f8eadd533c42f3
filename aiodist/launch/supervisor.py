"""A pure machine that decides when to stop the workers of one node, and with which signal.

Its states, and what leads from one to another, are the table `TRANSITIONS`; `docs/states.md` draws it.

A worker that has ended and may be started again is *away*: nothing follows from it until it is back, or
ended for good. Nobody comes back once the rest is asked to end.

In the grace nobody is asked to end: the others say by themselves what they noticed, and end. A failure
whose traceback only reports another rank's trouble is a *symptom*: its culprit is about to end by itself,
or is asked what it does meanwhile, and gets longer for that, so that the verdict can name it. Later
failures may shorten the grace, and never extend it.

Stopping climbs a ladder: SIGTERM, and SIGKILL after the shutdown timeout; Ctrl-C starts one rung
lower, with SIGINT. Each further signal of the operator climbs one rung at once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

# Seconds from a failure to SIGTERM for the rest. A group tells its members of a death within
# milliseconds; a traceback and the end of an interpreter take a tenth of a second. Too short to be felt.
# With torch, and on a busy machine, the end of the culprit's interpreter takes a second.
FAILURE_GRACE = 0.3
SYMPTOM_GRACE = 1.5
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
    """The failure or loss of another node's part.

    Args:
        stopped: the operator ends it; interrupt: by SIGINT.
        symptom: it failed because of another rank.
    """

    stopped: bool = False
    interrupt: bool = False
    symptom: bool = False


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


class State(Enum):
    """The states of a node's workers together."""

    RUNNING = "nobody is asked to end"
    GRACE = "something failed; the others may end by themselves"
    STOPPING = "workers that still run are asked to end"
    OVER = "all have ended"


class Cause(Enum):
    """The causes of a change; what events come down to."""

    FAILURE = "a failure, here or elsewhere"
    SIGNAL = "a signal of the operator"
    STOP = "the end of the job elsewhere"
    TIME = "the time is up"
    EMPTY = "nobody is left"


TRANSITIONS: dict[tuple[State, Cause], State] = {
    (State.RUNNING, Cause.FAILURE): State.GRACE,
    (State.RUNNING, Cause.SIGNAL): State.STOPPING,
    (State.RUNNING, Cause.STOP): State.STOPPING,
    (State.RUNNING, Cause.EMPTY): State.OVER,
    (State.GRACE, Cause.FAILURE): State.GRACE,  # and shorter, perhaps
    (State.GRACE, Cause.TIME): State.STOPPING,
    (State.GRACE, Cause.SIGNAL): State.STOPPING,
    (State.GRACE, Cause.STOP): State.STOPPING,
    (State.GRACE, Cause.EMPTY): State.OVER,
    (State.STOPPING, Cause.TIME): State.STOPPING,  # one rung higher
    (State.STOPPING, Cause.SIGNAL): State.STOPPING,  # likewise
    (State.STOPPING, Cause.EMPTY): State.OVER,
}
"""What follows from which cause, and where; nothing from any other. `docs/states.md` draws it."""


class Supervisor:
    """The machine of one node. Times are seconds of any monotonic clock.

    Args:
        count: workers of this node, local ranks 0 to count - 1.
        shutdown_timeout: seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, count: int, shutdown_timeout: float) -> None:
        self._state = State.RUNNING
        self._alive = set(range(count))
        self._away: set[int] = set()
        self._patience = shutdown_timeout
        self._ladder: list[tuple[int, float]] | None = None  # (signal, seconds until the next) still to come
        self._until: float | None = None  # the end of the grace, or of the patience with the last signal
        self._asked_elsewhere = False  # and not here yet

    @property
    def alive(self) -> tuple[int, ...]:
        """Local ranks that still run."""
        return tuple(sorted(self._alive))

    @property
    def over(self) -> bool:
        """Whether all have ended, and nobody comes back."""
        return self._state is State.OVER

    @property
    def stopping(self) -> bool:
        """Whether workers were asked to end, also when all have ended since."""
        return self._ladder is not None

    def may_return(self, local_rank: int) -> bool:
        """Whether a worker that is away can still be started again."""
        return local_rank in self._away and self._state is State.RUNNING

    def handle(self, event: Event, now: float) -> list[Action]:
        """The actions that `event` asks for, in this order."""
        match event:
            case Ended(local_rank, failed, symptom):
                grace = SYMPTOM_GRACE if symptom else FAILURE_GRACE
                return self._leave(local_rank, now, failed=failed, grace=grace)
            case Away(local_rank) if self.stopping:
                return self._leave(local_rank, now, failed=True)
            case Away(local_rank) if local_rank in self._alive:
                self._alive.discard(local_rank)
                self._away.add(local_rank)
            case Back(local_rank):
                self._away.discard(local_rank)
                self._alive.add(local_rank)
            case Asked() if (
                self._asked_elsewhere
            ):  # one wish, which came by two ways: through a launcher, say
                self._asked_elsewhere = False
            case Asked(signum):
                return self._go(Cause.SIGNAL, now, interrupt=signum == signal.SIGINT)
            case Elsewhere(stopped, interrupt, symptom):
                grace = SYMPTOM_GRACE if symptom else FAILURE_GRACE
                self._asked_elsewhere = self._asked_elsewhere or (stopped and not self.stopping)
                cause = Cause.STOP if stopped else Cause.FAILURE
                return self._go(cause, now, grace=grace, interrupt=interrupt)
            case Tick() if self._until is not None and now >= self._until:
                return self._go(Cause.TIME, now)
        return []

    def _leave(
        self, local_rank: int, now: float, *, failed: bool, grace: float = FAILURE_GRACE
    ) -> list[Action]:
        """Note that a worker has ended for good."""
        if local_rank not in self._alive | self._away:
            return []
        self._alive.discard(local_rank)
        self._away.discard(local_rank)
        if not self._alive and not self._away:
            return self._go(Cause.EMPTY, now)
        return self._go(Cause.FAILURE, now, grace=grace) if failed else []

    def _go(
        self, cause: Cause, now: float, *, grace: float = FAILURE_GRACE, interrupt: bool = False
    ) -> list[Action]:
        """Change the state, and do what its new one asks for."""
        after = TRANSITIONS.get((self._state, cause))
        if after is None:
            return []
        self._state = after
        if after is State.GRACE:
            return self._wait(now + grace)
        if after is State.STOPPING:
            return self._stop(now, interrupt=interrupt)
        self._until = None
        return [Over()]

    def _wait(self, until: float) -> list[Action]:
        """Stop the rest at this time, if not before."""
        if self._until is not None and self._until <= until:
            return []
        self._until = until
        return [Wake(until)]

    def _stop(self, now: float, *, interrupt: bool) -> list[Action]:
        """Climb one rung of the ladder, which begins with SIGINT if the operator did."""
        if self._ladder is None:
            self._away.clear()
            self._ladder = [(signal.SIGTERM, self._patience), (signal.SIGKILL, 0.0)]
            if interrupt:
                self._ladder.insert(0, (signal.SIGINT, min(INTERRUPT_GRACE, self._patience)))
        if not self._alive:  # only restarts were awaited
            return self._go(Cause.EMPTY, now)
        if not self._ladder:
            return []
        signum, patience = self._ladder.pop(0)
        actions: list[Action] = [Send(signum, self.alive)]
        self._until = now + patience if self._ladder else None
        if self._until is not None:
            actions.append(Wake(self._until))
        return actions
