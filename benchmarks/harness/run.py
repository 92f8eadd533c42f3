"""One run: what is asked for, the crews that are up, and the steps in turn."""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiodist.base.environment.processor_load import Sample, doubt, family, meanwhile, sample
from aiodist.cli.bench.measures import SIZES
from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import Found, Peer
from benchmarks.harness.progress import Progress
from benchmarks.harness.results import Results

_LEAST = 0.2  # seconds: over less, the kernel's clock of processor time is too coarse
_PATIENCE = 2  # failures of a crew after which it is not started again


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Args:
        ranks: world sizes of the sweeps.
        only: names of suites; empty: all.
        sizes: of the sweeps.
        turns: how often each peer's turn comes, for each size.
        budget: seconds of one turn.
        minutes: after these, what is left is skipped.
        quick: smaller and fewer of everything.
    """

    ranks: tuple[int, ...] = (2, 4, 8)
    only: tuple[str, ...] = ()
    sizes: tuple[int, ...] = SIZES
    turns: int = 5
    budget: float = 0.08
    minutes: float = 30.0
    quick: bool = False


QUICK = Settings(
    ranks=(2, 4),
    sizes=(8, 64 << 10, 1 << 20, 16 << 20),
    turns=2,
    budget=0.02,
    minutes=4.0,
    quick=True,
)


@dataclass(frozen=True)
class Step:
    """A piece of work.

    Args:
        suite: its suite.
        label: what to call it.
        work: what to do.
        ranks: the world size whose kept crews it uses; 0: none.
    """

    suite: str
    label: str
    work: Callable[[], None]
    ranks: int = 0


@dataclass
class Run:
    """The parts that the suites share.

    Attributes:
        found: the peers.
        settings: what is asked for.
        results: where figures go.
        progress: what the user sees.
    """

    found: Found
    settings: Settings
    results: Results
    progress: Progress = field(default_factory=lambda: Progress(1))
    _crews: dict[tuple[str, int], Crew] = field(default_factory=dict)
    _failures: dict[tuple[str, int], int] = field(default_factory=dict)

    def peers(self, *names: str) -> list[Peer]:
        """The peers of these that are here."""
        return [self.found.peers[name] for name in names if name in self.found.peers]

    def crew(self, peer: Peer, size: int) -> Crew:
        """The connected ranks of a peer; kept until `close_crews`.

        Raises:
            CrewError: they do not start, or have failed too often.
        """
        key = (peer.name, size)
        if key not in self._crews:
            if self.given_up(peer, size):
                raise CrewError(f"{peer.name} on {size} ranks has failed before")
            crew = self._crews[key] = Crew(peer, size)
            crew.call("connect", port=free_port())
            self.results.facts.setdefault("peers", {}).setdefault(peer.name, crew.versions)
        return self._crews[key]

    def given_up(self, peer: Peer, size: int) -> bool:
        """Whether the peer has failed too often at this world size."""
        return self._failures.get((peer.name, size), 0) >= _PATIENCE

    def failed(self, peer: Peer, size: int, error: CrewError) -> None:
        """Note a failure; the ranks are ended, and started anew when they are needed again."""
        key = (peer.name, size)
        self._failures[key] = self._failures.get(key, 0) + 1
        self.results.note(str(error))
        self.progress.say(str(error))
        if self.given_up(peer, size):
            self.results.note(f"{peer.name} on {size} ranks was given up after {_PATIENCE} failures")
        crew = self._crews.pop(key, None)
        if crew is not None:
            crew.close()

    def close_crews(self, size: int | None = None) -> None:
        """End the ranks of all peers, or of all with one world size."""
        keys = [key for key in self._crews if size is None or key[1] == size]
        for key in keys:
            self._crews[key].dismiss()
        for key in keys:
            self._crews.pop(key).close()

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Do one step after the other; one that fails is noted, and does not keep the others from running."""
        self.progress = Progress(len(steps))
        until = time.monotonic() + 60 * self.settings.minutes
        began = sample()
        try:
            for step in steps:
                self.progress.step(step.suite, step.label)
                if time.monotonic() > until:
                    self.results.note(f"out of time: {step.suite} {step.label} was skipped")
                    continue
                try:
                    with self._doubted():
                        step.work()
                except (AbsentError, unittest.SkipTest) as absent:
                    self.results.note(f"{step.suite} {step.label}: {absent}")
                except CrewError as error:
                    self.results.note(f"{step.suite} {step.label}: {error}")
                    self.progress.say(str(error))
        finally:
            self.progress.end()
            self.close_crews()
            self.results.doubt = _doubt(began)

    @contextmanager
    def _doubted(self) -> Iterator[None]:
        """Mark the figures that come meanwhile, if others than this run and its ranks take the processors."""
        first, before = len(self.results.records), sample()
        yield
        if why := _doubt(before):
            self.results.doubt_since(first, why)


def _doubt(before: Sample | None) -> str:
    """Why figures that were measured since a sample are not to be trusted; '' where they are."""
    after = sample()
    if before is None or after is None or after.at - before.at < _LEAST:
        return ""
    seen = meanwhile(before, after, family(before, after, os.getpid()))
    return doubt(seen) if seen else ""
