"""The own engine: a seeded generator changes valid inputs, and every input is judged.

What is judged: only the target's errors come out, each one line that can be shown; no input takes longer than
PATIENCE; and the memory that one takes is at most MEMORY and FACTOR times its size. Memory is measured with
tracemalloc, which makes everything six times slower: so of every TRACED blocks of inputs one is measured, and
any other block during which the process has grown is run again with eyes open.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import random
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

from aiodist.errors import AiodistError
from tests.fuzz.target import Run, Target, words_are_fit

PATIENCE = 20
"""Seconds that one input may take, in tracemalloc's slow motion."""

MEMORY = 16 << 20
"""Bytes that any input may take …"""

FACTOR = 256
"""… and so many times its own size beyond that."""

BLOCK, TRACED = 500, 8
"""Inputs in a block; one block in so many is measured."""

SPACE = 4 << 30
"""Bytes of address space that a target may take: beyond is a MemoryError, before the machine is full."""

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
    times: Counter[str] = field(default_factory=Counter)

    def crash(self, error: BaseException, data: bytes) -> None:
        """Note one."""
        where = f"{type(error).__name__} at {_innermost(error)}"
        self.times[where] += 1
        if where not in self.crashes and len(self.crashes) < KEPT:
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
        self._watchdog.beat()
        traced = tracemalloc.is_tracing()
        before = 0
        if traced:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        start = time.perf_counter()
        wrong: BaseException | None = None
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
        took = time.perf_counter() - start
        if took > outcome.slowest:
            outcome.slowest = took
        if traced:
            peak = tracemalloc.get_traced_memory()[1] - before
            outcome.peak = max(outcome.peak, peak)
            if wrong is None and peak > MEMORY + FACTOR * len(data):
                wrong = Judgement(f"{peak >> 20} MiB of memory for {len(data)} bytes of input")
        if wrong is not None:
            outcome.crash(wrong, data)
        return wrong


def fuzz(
    target: Target,
    inputs: int,
    seed: int,
    *,
    say: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Run a target's seeds, and changes of them until there were `inputs`. The same seed gives the same.

    Args:
        say: called about once a second.
    """
    rng = random.Random(f"{seed} {target.name}")
    outcome = Outcome(target.name)
    start = said = time.monotonic()
    with judging(target, outcome) as judge:
        corpus = target.seeds()
        for data in corpus[:inputs]:
            judge(data)
        for number in itertools.count():
            block = [_input(rng, target, corpus) for _ in range(min(BLOCK, inputs - outcome.inputs))]
            if not block:
                break
            if not number % TRACED:
                _each(judge, block)
            else:
                _untraced(judge, block, outcome)
            if say is not None and time.monotonic() - said > 1:
                said = time.monotonic()
                say(outcome)
    outcome.seconds = time.monotonic() - start
    return outcome


def _input(rng: random.Random, target: Target, corpus: list[bytes]) -> bytes:
    data = rng.choice(target.mutators)(rng, rng.choice(corpus), corpus)
    while rng.random() < 0.1:
        data = rng.choice(target.mutators)(rng, data, corpus)
    return data


def _trim() -> None:
    """Give back what was freed: an input that takes such pages again would not make the process grow."""
    with suppress(AttributeError):  # a C library that knows no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _each(judge: Judge, block: list[bytes]) -> None:
    for data in block:
        judge(data)


def _untraced(judge: Judge, block: list[bytes], outcome: Outcome) -> None:
    """At full speed; again, and measured, if the process has grown meanwhile."""
    tracemalloc.stop()
    _trim()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = _high_water()
    try:
        _each(judge, block)
    finally:
        tracemalloc.start(1)
    if _high_water() - before > MEMORY:
        _each(judge, block)
        outcome.inputs -= len(block)


@contextmanager
def judging(target: Target, outcome: Outcome) -> Iterator[Judge]:
    """A judge of one target's inputs, and what it needs: a clock that interrupts, and eyes on memory."""
    collecting = gc.isenabled()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start(1)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + SPACE, limits[1]))
        with target.open() as run, Watchdog() as watchdog:
            for data in target.seeds()[:2]:  # what is imported or cached on first use is no input's memory
                with _whatever():
                    run(data)
            gc.freeze()
            yield Judge(target, run, outcome, watchdog)
    finally:
        gc.unfreeze()
        if not tracing:
            tracemalloc.stop()
        if collecting:
            gc.enable()
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _high_water() -> int:
    """Bytes of memory that this process has held at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@contextmanager
def _whatever() -> Iterator[None]:
    try:
        yield
    except Exception:
        pass  # the first input that is judged will tell


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


__all__ = [
    "AiodistError",
    "Crash",
    "Judge",
    "Judgement",
    "Outcome",
    "fuzz",
    "judging",
    "read",
    "replay",
    "write",
]
