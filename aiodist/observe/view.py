"""What is known of a rank at one moment, and of a job. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiodist.base.errors import WireError
from aiodist.observe.recorder.dump import from_json, to_json
from aiodist.observe.recorder.reading import MOST_DRIFT, Record, Recording, sound, sound_number

SIGN = 2.0
"""Seconds after which a loop that has not turned counts as blocked, and a process that has not written
anything as held: these are due a few times a second."""

_BEATS = 4  # that a loop has to miss, where they are rare


class Doing(enum.Enum):
    """What a rank does."""

    running = "it computes, or has nothing to do"
    waiting = "its loop sleeps while operations are pending"
    blocked = "its event loop is blocked"
    held = "a call holds its interpreter"
    stopped = "it is stopped, by a signal or a debugger"
    dead = "its process has ended without leaving"
    left = "it has left the job"


@dataclass(frozen=True, slots=True)
class Stacks:
    """What a process was doing when it was asked.

    Args:
        thread: the calls of the loop's thread, 'train.py:41 in evaluate', the innermost first.
        tasks: asyncio's tasks, each with its awaits, as lines.
        by_signal: the process could not answer by itself; the kernel made it write this.
        others: the other threads, as lines.
    """

    thread: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    by_signal: bool = False
    others: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Any) -> Stacks:
        """From its plain values; `KeyError` or `TypeError` where these are others."""
        lines = {name: tuple(map(str, data[name])) for name in ("thread", "tasks", "others")}
        return cls(**lines, by_signal=bool(data["by_signal"]))


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank, as it was seen.

    Args:
        host: its name.
        key: of the job, as in the name of the recorder's file.
        recording: what its recorder held.
        now: when it was seen, in seconds of the host's monotonic clock.
        alive: its process lived.
        stopped: a signal or a debugger had stopped it.
        near: who looks and the process mean the same by its id: not in two containers, say.
        memory: resident bytes of the process; cpu: seconds of processor time that it has used.
        stacks: what it did, where it was asked.
        shift: seconds to add to its monotonic times to have those of whoever looks; error: by how much that
            may be wrong; drift: seconds by which the shift grows in a second of its time. The shift is that
            at `now`.
    """

    host: str
    key: str
    recording: Recording
    now: float
    alive: bool = True
    stopped: bool = False
    near: bool = False
    memory: int = 0
    cpu: float = 0.0
    stacks: Stacks | None = None
    shift: float = 0.0
    error: float = 0.0
    drift: float = 0.0

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self.recording.rank

    @property
    def identity(self) -> tuple[str, int, float]:
        """What tells its recording from all others."""
        return self.host, self.recording.pid, self.recording.began

    @property
    def doing(self) -> Doing:
        """What it did."""
        vitals = self.recording.vitals
        if self.recording.left:
            return Doing.left
        if not self.alive:
            return Doing.dead
        if self.stopped:
            return Doing.stopped
        if self.now - self._heard > SIGN:
            return Doing.held
        if vitals.turned and self.now - vitals.turned > max(SIGN, _BEATS * self._heartbeat):
            return Doing.blocked
        return Doing.waiting if self.recording.pending else Doing.running

    @property
    def _heard(self) -> float:
        """When its process wrote something last."""
        return self.recording.vitals.flushed or self.recording.began

    @property
    def _heartbeat(self) -> float:
        """Seconds from beat to beat of its loop; 0.0: it does not say."""
        found = self.recording.about.get("heartbeat")
        return found if isinstance(found, float) and sound(found) else 0.0

    @property
    def since(self) -> float:
        """Seconds for which it has been doing that; 0.0: not known."""
        vitals, doing = self.recording.vitals, self.doing
        start = 0.0
        if doing is Doing.blocked or (doing is Doing.stopped and vitals.turned):
            start = vitals.turned
        elif doing is Doing.held:
            start = self._heard
        elif doing is Doing.waiting:
            start = self.recording.pending[0].issued
        return max(0.0, self.now - start) if start else 0.0

    @property
    def last(self) -> Record | None:
        """The operation that it has issued last; None: none that is known."""
        return self.recording.last[-1] if self.recording.last else None

    def time(self, at: float) -> float:
        """A time of its monotonic clock on the clock of whoever looks."""
        return at + self.shift + self.drift * (at - self.now)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        stacks = None if self.stacks is None else asdict(self.stacks)
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**plain, "stacks": stacks, "recording": to_json(self.recording)}

    @classmethod
    def from_json(cls, data: Any) -> RankView:
        """From what `to_json` made.

        Raises:
            WireError: this is none.
        """
        try:
            stacks = None if data["stacks"] is None else Stacks.from_json(data["stacks"])
            plain = {name: kind(data[name]) for name, kind in _PLAIN.items()}
            if not sound(*(plain[name] for name in ("now", "cpu", "shift", "error"))):
                raise ValueError("a time is none")
            if not (abs(plain["drift"]) < MOST_DRIFT and sound_number(plain["memory"])):
                raise ValueError("its clock, or its memory, is none")
            return cls(recording=from_json(data["recording"]), stacks=stacks, **plain)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"this is no rank: {error}") from error

    def placed(self, shift: float, error: float, drift: float = 0.0) -> RankView:
        """The view, with what is known of its clock."""
        return replace(self, shift=shift, error=error, drift=drift)


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "host": str,
    "key": str,
    "now": float,
    "alive": bool,
    "stopped": bool,
    "memory": int,
    "cpu": float,
    "shift": float,
    "error": float,
    "drift": float,
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, as it was seen.

    Args:
        key: in the names of its recorders' files.
        ranks: those that were seen, by rank; of one that was restarted the last.
        past: those that died in an earlier epoch: their numbers are others' now.
    """

    key: str
    ranks: tuple[RankView, ...]
    past: tuple[RankView, ...] = ()

    @property
    def size(self) -> int:
        """The number of ranks that it has."""
        newest = max(self.ranks, key=lambda rank: rank.recording.epoch)
        return newest.recording.size

    @property
    def name(self) -> str:
        """What its ranks run: the script's name."""
        argv = self.ranks[0].recording.about.get("argv")
        return str(argv[0]).rpartition("/")[2] if isinstance(argv, list) and argv else "?"

    @property
    def run(self) -> str:
        """The number of the launcher's run that it is of; '': its ranks tell of none."""
        found = self.ranks[0].recording.about.get("run")
        return found if isinstance(found, str) else ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its ranks, in the ranks' order."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))


def jobs(ranks: Iterable[RankView]) -> list[JobView]:
    """The ranks by job, the job that began last first."""
    found: dict[str, dict[int, RankView]] = {}
    past: dict[str, list[RankView]] = {}
    every = list(ranks)
    newest: dict[str, int] = {}
    for rank in every:
        newest[rank.key] = max(newest.get(rank.key, 0), rank.recording.epoch)
    for rank in every:
        if not rank.alive and rank.recording.epoch < newest[rank.key]:
            past.setdefault(rank.key, []).append(rank)
            continue
        of_job = found.setdefault(rank.key, {})
        before = of_job.get(rank.rank)
        if before is None or (before.alive, before.recording.since) <= (rank.alive, rank.recording.since):
            of_job[rank.rank] = rank
    views = [
        JobView(key, tuple(of_job[rank] for rank in sorted(of_job)), tuple(past.get(key, ())))
        for key, of_job in found.items()
    ]
    return sorted(views, key=lambda job: -max(rank.recording.since for rank in job.ranks))
