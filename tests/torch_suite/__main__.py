"""`python -m tests.torch_suite [--on gloo] [PATTERN …]`: torch's distributed_test.py on our backend.

The tests ask torch for "gloo", since most of them are skipped for a name that they do not know; with
AIODIST_TORCH=1 torch makes groups of ours for it. `--on gloo` runs the same on gloo itself. A line for each
test, and the sums at the end; with `--into FILE` also as JSON, which `--beside FILE` compares with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any


class _Result(unittest.TestResult):
    """Prints a line for each test.

    Attributes:
        outcomes: by name: 'ok', 'skipped: why', 'failed: last line'.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    def _note(self, test: Any, outcome: str) -> None:
        name = test.id().rpartition(".")[2]
        self.outcomes[name] = outcome
        print(f"{time.monotonic() - self._began:6.1f} s  {name}: {outcome}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, f"skipped: {reason}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._failed(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._failed(test, err)

    def _failed(self, test: unittest.TestCase, err: Any) -> None:
        lines = [line for line in str(err[1]).splitlines() if line.strip()]
        telling = [line for line in lines if "Error" in line and not line.startswith(" ")]
        self._note(test, f"failed: {(telling or lines or ['?'])[-1][:300]}")


def main() -> int:
    """Run the command; 1 where a test fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="only tests whose names contain one of these")
    parser.add_argument("--on", default="aiodist", choices=["aiodist", "gloo"])
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--patience", default="60", help="seconds for each test")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--beside", type=Path, help="what --into wrote of the other backend")
    options = parser.parse_args()
    os.environ |= {
        "BACKEND": "gloo",
        "AIODIST_TORCH": "1" if options.on == "aiodist" else "0",
        "WORLD_SIZE": options.ranks,
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": options.patience,
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        from tests.torch_suite.suite import TestBackend

        names = unittest.TestLoader().getTestCaseNames(TestBackend)
        chosen = [name for name in names if not options.patterns or any(p in name for p in options.patterns)]
        result = _Result()
        unittest.TestSuite(map(TestBackend, chosen)).run(result)
    if options.into:
        options.into.write_text(json.dumps(result.outcomes, indent=1))
    kinds = [outcome.partition(":")[0] for outcome in result.outcomes.values()]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in ("ok", "skipped", "failed")))
    if options.beside:
        _compare(result.outcomes, json.loads(options.beside.read_text()))
    return int("failed" in kinds)


def _compare(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Print what differs between the backends."""
    for name in sorted(ours):
        kinds = [outcome.get(name, "?").partition(":")[0] for outcome in (ours, theirs)]
        if kinds[0] != kinds[1]:
            print(f"{name}: here {ours[name]}; there {theirs.get(name, 'not run')}")


if __name__ == "__main__":
    sys.exit(main())
