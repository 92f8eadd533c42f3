"""One rank of an `@spmd` test: imports the test's file, joins the group, runs the function, and reports.

Run as `python -m aiodist.testing.worker PLAN`, or, for one function without a test around it,
`… FILE FUNCTION ARGUMENTS [BACKEND]` with the arguments as JSON. The environment has the rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import signal
import sys
import time
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiodist.testing import report as reports
from aiodist.testing.parcel import unpack
from aiodist.testing.plan import MAIN, Finder, RankPlace, RankPlan
from aiodist.testing.report import Report
from aiodist.testing.terminal import Debugger
from aiodist.testing.warned import Warnings

if TYPE_CHECKING:
    from aiodist.group import ProcessGroup

LIMIT = 60.0  # seconds for the ranks to meet, and of each operation


def load(path: str, qualname: str) -> Any:
    """The test function inside its decorator, from its file."""
    name = f"spmd_{Path(path).stem}"
    sys.path.insert(0, str(Path(path).parent))
    return _found(RankPlan(name, qualname, {name: RankPlace(path)}))


def _found(plan: RankPlan, rewriting: Any = None) -> Any:
    places, name = dict(plan.places), plan.module
    if name == MAIN:  # a script: its `if __name__ == "__main__"` is not for ranks
        name = "__mp_main__"
        places[name] = places.pop(MAIN)
    sys.meta_path.insert(0, Finder(places, rewriting))
    module: Any = importlib.import_module(name)
    if plan.module == MAIN:
        sys.modules[MAIN] = module
    found = module
    for part in plan.qualname.split("."):
        found = getattr(found, part)
    return getattr(found, "spmd_function", found)


async def _run(
    plan: RankPlan, call: Callable[[ProcessGroup], Awaitable[None]], note: Callable[[BaseException], None]
) -> None:
    import aiodist as dist

    async with await dist.init_process_group(plan.backend or None, timeout=LIMIT) as group:
        try:
            await call(group)
        except BaseException as error:
            note(error)  # before the group is aborted, and the others fail, too
            raise


def _itself(pickled: bytes) -> Any:
    value = unpack(pickled)
    if isinstance(value, tuple):  # a unittest.TestCase
        kind, name, attributes = value
        made: unittest.TestCase = kind(name)
        vars(made).update(attributes)
        return made
    return value


def main() -> None:
    """The rank's life."""
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a rank that is killed has said what it printed
    given = sys.argv[1:]
    if len(given) > 1:
        _main_alone(*given)
        return
    plan = RankPlan.read(Path(given[0]))
    _Rank(plan, Path(given[0]).parent).run()


def _main_alone(path: str, qualname: str, arguments: str, backend: str = "") -> None:
    import aiodist as dist

    async def main() -> None:
        function = load(path, qualname)
        async with await dist.init_process_group(backend or None, timeout=LIMIT) as group:
            await function(group, **json.loads(arguments))

    dist.run(main())


class _Rank:
    """A rank that reports to the folder of its plan."""

    def __init__(self, plan: RankPlan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._rank = int(os.environ["RANK"])
        self._report: Report | None = None
        self._inside: Any = None
        self._debugger: Debugger | None = None
        self._warnings = Warnings(folder, self._rank)

    def run(self) -> None:
        import aiodist as dist

        plan = self._plan
        sys.path[:] = plan.path
        measured = None
        if plan.coverage is not None:
            from aiodist.testing.measuring import begin

            measured = begin(plan.coverage)
        if plan.reporting is not None:
            from aiodist.testing.inside import Inside

            self._inside = Inside(plan.reporting)
        debugger = Debugger(plan.terminal, self._rank, self._folder, plan.breaks)
        debugger.install()
        self._debugger = debugger
        try:
            call = self._call()  # imported as pytest does, where no loop runs
            dist.run(_run(plan, call, self._note))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._note(error)  # later than in the function, which counts, unless it was outside of it
            sys.exit(1)
        finally:
            self._warnings.end()
            if measured is not None:
                measured.end(self._folder / f"coverage{self._rank}")
        Report("passed", time.monotonic_ns()).write(self._folder, self._rank)

    def _call(self) -> Callable[[ProcessGroup], Awaitable[None]]:
        """The function, with all that it is given but the group."""
        plan, inside = self._plan, self._inside
        function = _found(plan, inside.rewriting if inside else None)
        given = {name: unpack(value) for name, value in plan.arguments.items()}
        first = [] if plan.itself is None else [_itself(plan.itself)]

        async def call(group: ProcessGroup) -> None:
            code = function.__code__
            self._warnings.begin(plan.filters, code.co_filename, code.co_firstlineno)
            with inside.fixtures(plan.own) if inside else contextlib.nullcontext({}) as made:
                await function(*first, group, **given, **made)

        return call

    def _note(self, error: BaseException) -> None:
        if self._report is not None:
            return
        when, kind = time.monotonic_ns(), reports.kind_of(error)
        if kind == "failed":
            self._report = Report(
                kind,
                when,
                reports.line_of(error),
                reports.place_of(error),
                reports.text_of(error),
                self._inside.shown(error) if self._inside and not reports.is_told_by_line(error) else None,
                reports.follows(error),
            )
        else:
            self._report = Report(kind, when, str(getattr(error, "msg", None) or error))
        self._report.write(self._folder, self._rank)
        pdb = self._plan.reporting is not None and self._plan.reporting.pdb
        if pdb and self._debugger is not None and kind == "failed" and not self._report.follows:
            self._debugger.post_mortem(error)


if __name__ == "__main__":
    main()
