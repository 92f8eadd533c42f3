"""Whose code a file holds."""

from __future__ import annotations

from pathlib import Path

from aiodist.base import callers
from aiodist.base.callers import Whose, whose


def test_the_benchmark_is_a_program_of_the_librarys_and_the_rest_of_the_package_is_the_library() -> None:
    package = Path(callers.__file__).parents[1]
    assert whose(str(package / "cli" / "bench" / "calls.py")) is Whose.program
    assert whose(str(package / "benches.py")) is Whose.ours
    assert whose(str(package / "ddp" / "sync.py")) is Whose.ours
    assert whose("aiodist/_engine/handle.pyx") is Whose.ours  # as compiled code says it
    assert whose("/tmp/build/aiodist/_engine/handle.pyx") is Whose.ours
