"""Faults that the tests must notice: each is put into a copy of the sources, and its tests are run there.

    python -m tests.gpu.mutations FOLDER PYTEST…     the copies go to FOLDER; PYTEST is how to run a test file

Where a fault lets all tests pass they see nothing on this device: then nothing that passed counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = 60.0  # seconds for the tests of one


class Mutation(NamedTuple):
    """One fault.

    Attributes:
        what: it is, in words.
        path: of the file, in the repository.
        old: what is replaced, once in the file.
        new: by what.
        tests: pytest's -k, in test_streams.py.
    """

    what: str
    path: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    Mutation(
        "no wait for the caller's stream",
        "aiodist/backends/nccl/engine.py",
        "stand.wait_for_caller(raw)",
        "pass",
        "operation_begins_after",
    ),
    Mutation(
        "the caller's stream is marked when a batch ends",
        "aiodist/backends/foreign/backend.py",
        "        self._channels.guard(self._note, operation)\n",
        "",
        "in_a_batch",
    ),
    Mutation(
        "synchronize() waits for nothing",
        "aiodist/backends/cuda/completion.py",
        "after(self._cupy, raw or 0, event)",
        "pass",
        "told_to_waits",
    ),
    Mutation(
        "an operation is over before its event",
        "aiodist/backends/cuda/waiter.py",
        "then(self._failed or _error_of(event.synchronize))",
        "then(self._failed)",
        "operation_begins_after",
    ),
)


def noticed(code: int, output: str) -> bool:
    """Whether tests failed, and not only could not run."""
    return code == 1 and re.search(r"\b[1-9]\d* failed", output) is not None


def main(folder: Path, pytest: list[str], tests: str = "tests/gpu/test_streams.py") -> int:
    """Run all; 0 if every one was noticed."""
    missed = 0
    for number, mutation in enumerate(MUTATIONS):
        copy = folder / f"mutation-{number}"
        shutil.rmtree(copy, ignore_errors=True)
        for part in ("aiodist", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / mutation.path
        text = file.read_text()
        assert text.count(mutation.old) == 1, mutation
        file.write_text(text.replace(mutation.old, mutation.new))
        paths = filter(None, [str(copy), os.environ.get("PYTHONPATH", "")])
        command = [
            "env",
            f"PYTHONPATH={os.pathsep.join(paths)}",
            *pytest,
            "-k",
            mutation.tests,
            str(copy / tests),
        ]
        try:
            done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=LIMIT)
            found = noticed(done.returncode, done.stdout)
            last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
        except subprocess.TimeoutExpired:
            found, last = False, f"no end within {LIMIT:g} s"
        missed += not found
        print(f"{'noticed' if found else 'NOT noticed'}: {mutation.what} ({last})", flush=True)
        shutil.rmtree(copy, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
