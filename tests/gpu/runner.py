"""All that a machine with a GPU is to tell, in two parts of nine minutes at most.

    tests/gpu/run 1 OUT --kit KIT         facts, CuPy and NCCL alone, one rank, two ranks
    tests/gpu/run 2 OUT --kit KIT         order, ends, faults to be noticed, through the host, figures

What teaches most comes first. Each step has a limit of its own; one that fails, or does not end, stops none
after it. Output goes to OUT/NN-name.log, the whole in short to OUT/summary.txt. Nothing is fetched.

Several ranks on one GPU need NCCL 2.30 or later. Where the installed one is older, KIT is a folder with a
newer one, made by `tests/gpu/prepare` on a machine with a network.
"""

from __future__ import annotations

import argparse
import contextlib
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 530.0
"""Seconds for a part."""
LIBRARY = "libnccl.so.2"
_TAIL = 14  # lines of each step that are shown
_INI = """[pytest]
addopts = -rfEX --strict-markers --import-mode=importlib
xfail_strict = true
timeout = 60
timeout_method = signal
limit_again = 10
filterwarnings = default
markers =
    slow(reason): takes long for what it shows
    gpu: needs a CUDA device
"""


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: of its log.
        limit: seconds.
        command: for the interpreter; of the items that begin with '@', '@pytest' stands for pytest with its
            options, '@out' for the folder of logs, '@scratch' for one that is thrown away.
        several: ranks share a GPU in it.
    """

    name: str
    limit: float
    command: tuple[str, ...]
    several: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def _run(ranks: int, *arguments: str) -> tuple[str, ...]:
    return ("-m", "aiodist", "run", "--nproc-per-node", str(ranks), *arguments)


_ONE_RANK = "tests/gpu/test_nccl.py::test_programs_on_one_rank"
_FIGURES = ("-m", "benchmarks.speed.gpu")
_FIGURES = ("-m", "benchmarks.speed.gpu")
_SMALL = ("--sizes", "8", "1048576", "16777216")
PARTS: dict[int, tuple[Step, ...]] = {
    1: (
        Step("facts", 40, ("-m", "tests.gpu.facts")),
        Step("doctor", 45, ("-m", "aiodist", "doctor")),
        Step("raw-one-rank", 40, ("tests/gpu/raw.py", "0", "1", "@scratch/id")),
        Step("calls-that-wait", 30, ("-m", "tests.gpu.blocking")),
        Step("tests-one-rank", 130, ("@pytest", "tests/gpu/test_streams.py", _ONE_RANK)),
        Step("raw-two-ranks", 150, ("tests/gpu/raw.py", "--pair", "@out"), several=True),
        Step(
            "tests-several-ranks",
            260,
            ("@pytest", "tests/gpu/test_nccl.py", "--deselect", _ONE_RANK),
            several=True,
        ),
    ),
    2: (
        Step("tests-order", 90, ("@pytest", "tests/gpu/test_order.py"), several=True),
        Step("tests-ends", 110, ("@pytest", "tests/gpu/test_ends.py"), several=True),
        Step("mutations", 80, ("-m", "tests.gpu.mutations", "@scratch", "@python", "@pytest")),
        Step("tests-through-the-host", 100, ("@pytest", "tests/gpu/test_staged.py")),
        Step("figures-one-rank", 60, _run(1, *_FIGURES, "--sizes", "8", "1048576", "268435456")),
        Step("figures-two-ranks", 60, _run(2, *_FIGURES, *_SMALL), several=True),
        Step(
            "train-torch",
            45,
            _run(2, "examples/train_gpu.py", "--library", "torch", "--epochs", "2"),
            several=True,
        ),
        Step(
            "train-cupy",
            45,
            _run(2, "examples/train_gpu.py", "--library", "cupy", "--epochs", "2"),
            several=True,
        ),
    ),
}


@dataclass(frozen=True)
class Ended:
    """How a step ended.

    Attributes:
        code: exit code; None: it was ended at its limit, or there was no time for it.
        counts: of its tests: 'passed', 'failed', …
    """

    name: str
    code: int | None
    seconds: float
    counts: Mapping[str, int]

    def line(self) -> str:
        """In the summary."""
        how = (
            "no time" if self.code is None and not self.seconds else "LIMIT" if self.code is None else "well"
        )
        if self.code:
            how = f"exit code {self.code}"
        told = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        return f"{self.name:24} {how:14} {self.seconds:6.1f} s  {told}".rstrip()


def counts(output: str) -> dict[str, int]:
    """Of tests, from the last line in which pytest says so."""
    for line in reversed(output.splitlines()):
        found = re.findall(r"(\d+) (passed|failed|skipped|errors?|deselected)\b", line)
        if found and " in " in line:
            return {what.rstrip("s") if what == "errors" else what: int(count) for count, what in found}
    return {}


def library(kit: Path | None, scratch: Path) -> Path | None:
    """The NCCL of a kit, unpacked if it must be."""
    if kit is None:
        return None
    packed = kit / f"{LIBRARY}.xz"
    if packed.exists():
        with lzma.open(packed) as source, (scratch / LIBRARY).open("wb") as target:
            shutil.copyfileobj(source, target)
        return scratch / LIBRARY
    plain = kit / LIBRARY
    if not plain.exists():
        raise SystemExit(f"{kit} has no {LIBRARY}, nor {packed.name}: tests/gpu/prepare makes it")
    return plain.resolve()


class Runner:
    """Carries out steps.

    Args:
        out: folder for logs.
        scratch: one that is thrown away.
        nccl: what is loaded where ranks share a GPU, or None.
        setting: what two ranks on one GPU need, 'NAME=VALUE …'; None: what `raw-two-ranks` found.
        limit: seconds for all.
    """

    def __init__(
        self,
        out: Path,
        scratch: Path,
        nccl: Path | None = None,
        setting: str | None = None,
        limit: float = LIMIT,
    ) -> None:
        self._out, self._scratch, self._nccl, self._setting = out, scratch, nccl, setting
        self._until = time.monotonic() + limit
        (scratch / "pytest.ini").write_text(_INI)

    def environment(self, step: Step) -> dict[str, str]:
        """Of a step's processes."""
        found = self._out / "setting"
        setting = self._setting
        if setting is None:
            setting = found.read_text() if found.exists() else ""
        shared = {}
        if step.several:
            shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
            shared |= dict(item.split("=", 1) for item in setting.split())
            if self._nccl is not None:
                shared["LD_PRELOAD"] = str(self._nccl)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "AIODIST_TEST_GPU": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            **shared,
            **step.env,
        }

    def command(self, step: Step) -> list[str]:
        """What to start."""
        pytest = ["-m", "pytest", "-q", "-c", str(self._scratch / "pytest.ini"), "--rootdir", str(ROOT)]
        pytest += [
            "-p",
            "pytest_timeout",
            "-p",
            "aiodist.testing.plugin",
            "-p",
            "no:cacheprovider",
            "--durations=6",
        ]
        made = [sys.executable]
        for item in step.command:
            if item == "@pytest":
                made += pytest
            elif item == "@python":
                made.append(sys.executable)
            else:
                made.append(item.replace("@out", str(self._out)).replace("@scratch", str(self._scratch)))
        return made

    def run(self, number: int, step: Step) -> Ended:
        """Carry one out, within its limit and what is left of the whole."""
        left = min(step.limit, self._until - time.monotonic())
        if left < 5:
            return Ended(step.name, None, 0.0, {})
        log = self._out / f"{number:02}-{step.name}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(step),
                cwd=ROOT,
                env=self.environment(step),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(left)
            except subprocess.TimeoutExpired:
                code = None
            _end(process)
        text = log.read_text(errors="replace")
        return Ended(step.name, code, time.monotonic() - began, counts(text))

    def tail(self, number: int, step: Step) -> str:
        """The last lines of a step's log."""
        lines = (self._out / f"{number:02}-{step.name}.log").read_text(errors="replace").splitlines()
        return "\n".join(f"    {line[:200]}" for line in lines[-_TAIL:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a step, all of its session."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module. 0 if every step ended well."""
    parser = argparse.ArgumentParser(
        prog="tests/gpu/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", type=int, choices=sorted(PARTS), help="which of the two")
    parser.add_argument("out", type=Path, nargs="?", help="folder for logs; $OUT by default")
    parser.add_argument("--kit", type=Path, help="folder with a newer NCCL")
    parser.add_argument(
        "--setting", help="what two ranks on one GPU need, 'NAME=VALUE …'; else OUT/setting says"
    )
    parser.add_argument("--only", nargs="*", help="names of steps")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for the part (%(default)g)")
    options = parser.parse_args(arguments)
    out = options.out or Path(os.environ.get("OUT", ""))
    if not str(options.out or os.environ.get("OUT", "")):
        parser.error("say where logs go: an argument, or $OUT")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="aiodist-gpu-") as name:
        scratch = Path(name)
        runner = Runner(out, scratch, library(options.kit, scratch), options.setting, options.limit)
        ended = []
        for number, step in enumerate(PARTS[options.part]):
            if options.only and step.name not in options.only:
                continue
            print(f"== {step.name}, at most {step.limit:g} s", flush=True)
            one = runner.run(10 * options.part + number, step)
            ended.append(one)
            if one.seconds:
                print(runner.tail(10 * options.part + number, step))
            print(f"-- {one.line()}", flush=True)
    summary = "\n".join(one.line() for one in ended)
    with (out / "summary.txt").open("a") as file:
        file.write(f"part {options.part}\n{summary}\n")
    print(f"\n{summary}\nlogs are in {out}")
    return 0 if all(one.code == 0 for one in ended) else 1
