"""The engine atheris: libFuzzer draws what Hypothesis would, led by which lines an input reaches.

It has a process for each target, as libFuzzer ends the process that it runs in. Not among the test
dependencies: `pip install atheris`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz.engine import Crash, Outcome
from tests.fuzz.target import Target

MISSING = "atheris is not installed: pip install atheris (Linux and macOS, CPython up to 3.13)"


def available() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(target: Target, inputs: int, seed: int, *, say: Callable[[Outcome], None] | None = None) -> Outcome:
    """As `engine.fuzz`."""
    if not available():
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "outcome")
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.with_atheris",
            target.name,
            str(inputs),
            str(seed),
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not answer.exists():
            raise RuntimeError(
                f"the fuzzer of {target.name} died:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return _outcome(json.loads(answer.read_text()))


def _outcome(said: dict[str, Any]) -> Outcome:
    outcome = Outcome(**{**said, "refused": Counter(said["refused"])})
    outcome.crashes = {
        where: Crash(crash["error"], where, bytes.fromhex(crash["data"]), crash["number"])
        for where, crash in said["crashes"].items()
    }
    return outcome


def _said(outcome: Outcome) -> str:
    crashes = {
        where: {"error": crash.error, "data": crash.data.hex(), "number": crash.number}
        for where, crash in outcome.crashes.items()
    }
    return json.dumps({**vars(outcome), "crashes": crashes})


def _run(name: str, count: int, seed: int, folder: str) -> None:
    """In a process of its own: everything of aiodist is imported with its branches counted."""
    import time

    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["aiodist"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS

    from tests.fuzz.engine import checking, judging

    target = next(target for target in TARGETS if target.name == name)
    outcome = Outcome(name)
    answer = Path(folder, "outcome")
    start = time.monotonic()
    with judging(target, outcome) as judge:
        check = checking(target, judge, count).hypothesis.fuzz_one_input

        def one(data: bytes) -> None:
            with suppress(Exception):  # the judge has noted it
                check(data)
            if outcome.inputs >= count:
                outcome.seconds = time.monotonic() - start
                answer.write_text(_said(outcome))
                os._exit(0)

        options = [f"-seed={seed}", "-max_len=4000", "-rss_limit_mb=0", "-verbosity=0"]
        atheris.Setup(["fuzz", *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
