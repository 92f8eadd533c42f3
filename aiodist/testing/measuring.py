"""Coverage of the ranks' lines: each rank measures as the test's process does, which takes over the lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def measured() -> dict[str, Any] | None:
    """What is measured in this process, for the ranks; None: nothing is."""
    coverage = sys.modules.get("coverage")
    running = None if coverage is None else coverage.Coverage.current()
    if running is None:
        return None
    config = running.config
    return {
        "config_file": config.config_file or False,
        "branch": config.branch,
        "source": config.source,
        "source_pkgs": config.source_pkgs,
        "include": config.run_include,
        "omit": config.run_omit,
    }


def begin(options: Mapping[str, Any]) -> Measured | None:
    """Begin to measure, in a rank; None where something does already."""
    import coverage

    if coverage.Coverage.current() is not None:
        return None
    return Measured(coverage.Coverage(data_file=None, messages=False, **_usable(options)))


def _usable(options: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(options)
    if given["include"] and (given["source"] or given["source_pkgs"]):
        del given["include"]  # they exclude each other
    return {name: value for name, value in given.items() if value not in (None, [])}


class Measured:
    """What measures in a rank."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        coverage.start()

    def end(self, path: Path) -> None:
        """Stop, and write the lines to a file."""
        import coverage

        self._coverage.stop()
        data = coverage.CoverageData(str(path))
        data.update(self._coverage.get_data())
        data.write()
        data.close()


def take_over(folder: Path) -> None:
    """Add what the ranks have measured to what this process has."""
    coverage = sys.modules.get("coverage")
    running = None if coverage is None else coverage.Coverage.current()
    if coverage is None or running is None:
        return
    for path in sorted(folder.glob("coverage*")):
        data = coverage.CoverageData(str(path))
        with contextlib.suppress(coverage.CoverageException):  # the rank was killed as it wrote
            data.read()
            running.get_data().update(data)
        data.close()
