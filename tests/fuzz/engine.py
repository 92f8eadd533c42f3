"""Hypothesis changes valid inputs, and every input is judged.

What is judged: only the target's errors come out, each one line that can be shown; no input takes longer
than PATIENCE; and the memory that one takes, as tracemalloc counts it, is at most MEMORY and FACTOR times its
size. Hypothesis shrinks what fails, so what is kept of a crash is its smallest input.
"""

from __future__ import annotations

import json
import resource
import signal
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Run, Target, words_are_fit

PATIENCE = 20
"""Seconds that one input may take, in tracemalloc's slow motion."""

MEMORY = 16 << 20
"""Bytes that any input may take …"""

FACTOR = 256
"""… and so many times its own size beyond that."""

SPACE = 4 << 30
"""Bytes of address space that a target may take: beyond is a MemoryError, before the machine is full."""

ROUND = 1000
"""Inputs that Hypothesis draws in one go: it remembers all of them until it has ended."""

KEPT = 20  # crashes of a target whose inputs are written down


class Judgement(Exception):
    """The parser raised nothing, and is wrong all the same."""


@dataclass
class Crash:
    """One input that came out wrong.

    Args:
        error: what came out, in a line.
        where: the innermost place in the library, so that equal crashes count as one.
        data: the input.
        number: of the input in its run.
    """

    error: str
    where: str
    data: bytes
    number: int


@dataclass
class Outcome:
    """What became of a target's inputs."""

    name: str
    inputs: int = 0
    seconds: float = 0.0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    slowest: float = 0.0
    crashes: dict[str, Crash] = field(default_factory=dict)

    def crash(self, error: BaseException, data: bytes) -> None:
        """Note one, in place of an earlier one from there: Hypothesis ends with the smallest."""
        where = f"{type(error).__name__} at {_innermost(error)}"
        if where in self.crashes or len(self.crashes) < KEPT:
            self.crashes[where] = Crash(f"{error!s:.200}", where, data, self.inputs)


class Judge:
    """Runs inputs through one target, and writes into an `Outcome` what comes out."""

    def __init__(self, target: Target, run: Run, outcome: Outcome, watchdog: Watchdog) -> None:
        self._target = target
        self._run = run
        self._outcome = outcome
        self._watchdog = watchdog

    def __call__(self, data: bytes) -> BaseException | None:
        """One input; what was wrong with it, if anything was."""
        outcome = self._outcome
        outcome.inputs += 1
        wrong: BaseException | None = None
        self._watchdog.beat()
        tracemalloc.start(1)
        start = time.perf_counter()
        try:
            word = self._run(data)
            if word:
                outcome.refused[word] += 1
            else:
                outcome.accepted += 1
        except self._target.errors as error:
            outcome.refused[type(error).__name__] += 1
            if not words_are_fit(error):
                wrong = Judgement(f"words that cannot be shown: {error.message!r:.150} {error.hint!r:.50}")
                wrong.__traceback__ = error.__traceback__
        except Exception as error:
            wrong = error
        finally:
            took = time.perf_counter() - start
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        outcome.slowest = max(outcome.slowest, took)
        outcome.peak = max(outcome.peak, peak)
        if wrong is None and peak > MEMORY + FACTOR * len(data):
            wrong = Judgement(f"{peak >> 20} MiB of memory for {len(data)} bytes of input")
        if wrong is not None:
            outcome.crash(wrong, data)
        return wrong


def fuzz(target: Target, inputs: int, seed: int, *, say: Callable[[Outcome], None] | None = None) -> Outcome:
    """Run a target's seeds, and changes of them, until there were `inputs` or one came out wrong.

    The same seed gives the same inputs.

    Args:
        say: called about once a second.
    """
    outcome = Outcome(target.name)
    start = said = time.monotonic()
    with judging(target, outcome) as judge:
        for data in target.seeds()[:inputs]:
            judge(data)
        number = 0
        while outcome.inputs < inputs and not outcome.crashes:
            check = checking(target, judge, min(ROUND, inputs - outcome.inputs))
            try:
                seeded(f"{seed} {number}")(check)()
            except Exception:
                if not outcome.crashes:
                    raise
            number += 1
            if say is not None and time.monotonic() - said > 1:
                said = time.monotonic()
                say(outcome)
    outcome.seconds = time.monotonic() - start
    return outcome


def checking(target: Target, judge: Judge, examples: int) -> Any:
    """Hypothesis's test of one target: called, it judges so many inputs, and raises what was wrong."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(target.seeds(), target.mutators))
    def check(data: bytes) -> None:
        wrong = judge(data)
        if wrong is not None:
            raise wrong

    return check


@contextmanager
def judging(target: Target, outcome: Outcome) -> Iterator[Judge]:
    """A judge of one target's inputs, and what it needs: a clock that interrupts, and a bound on memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + SPACE, limits[1]))
        with target.open() as run, Watchdog() as watchdog:
            for data in target.seeds()[:2]:  # what is imported or cached on first use is no input's memory
                with suppress(Exception):  # the first input that is judged will tell
                    run(data)
            yield Judge(target, run, outcome, watchdog)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


class Watchdog:
    """Interrupts an input that takes longer than PATIENCE, without a timer for each."""

    def __init__(self) -> None:
        self._beats = 0
        self._seen = -1
        self._ticks = 0

    def beat(self) -> None:
        """Another input begins."""
        self._beats += 1

    def _tick(self, _signal: int, _frame: FrameType | None) -> None:
        if self._beats != self._seen:
            self._seen, self._ticks = self._beats, 0
            return
        self._ticks += 1
        if self._ticks == PATIENCE:
            raise Judgement(f"no end after {PATIENCE} s")

    def __enter__(self) -> Watchdog:
        self._before = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


def _innermost(error: BaseException) -> str:
    """The last place of an error's trace that is in the library; else the last."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for file, line in reversed(places):
        if "/aiodist/" in file:
            return f"{file.rpartition('/aiodist/')[2]}:{line}"
    return f"{Path(places[-1][0]).name}:{places[-1][1]}" if places else "nowhere"


# ── failing inputs as files ──────────────────────────────────────────────────────────────────────────


def write(crash: Crash, target: str, seed: int, folder: Path) -> Path:
    """A failing input as a file: one line of JSON that says what it is, then its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"target": target, "seed": seed, "number": crash.number, "error": crash.error, "at": crash.where}
    path = folder / f"{target}-{seed}-{crash.number}.input"
    path.write_bytes(json.dumps(about).encode() + b"\n" + crash.data)
    return path


def read(path: Path) -> tuple[str, bytes]:
    """→ the target and the input of a file."""
    about, _, data = path.read_bytes().partition(b"\n")
    return str(json.loads(about)["target"]), data


def replay(target: Target, data: bytes) -> Outcome:
    """One input, judged; what it raises is printed."""
    outcome = Outcome(target.name)
    with judging(target, outcome) as judge:
        wrong = judge(data)
    if wrong is not None:
        traceback.print_exception(wrong)
    return outcome
