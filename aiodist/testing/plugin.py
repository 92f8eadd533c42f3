"""The pytest plugin: loaded by pytest wherever aiodist is installed. Costs nothing until it is used.

It shows what `@spmd` tests fail with as if the first rank to fail had been this process, tells those tests
how pytest was called, and brings one fixture.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from aiodist.base.errors import AiodistError, UsageError
from aiodist.testing.outcome import RanksFailed

if TYPE_CHECKING:
    from aiodist.testing.run import Around

_runs: list[pytest.Config] = []  # several, where one runs inside another


@pytest.fixture(name="aiodist_cluster")
def cluster_fixture() -> Callable[..., Any]:
    """`run_cluster`: await `aiodist_cluster(4, main)` to run `main(pg)` on four ranks in this process."""
    from aiodist.testing.cluster import run_cluster

    return run_cluster


def pytest_configure(config: pytest.Config) -> None:
    """Note that pytest runs, and how."""
    _runs.append(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Note that it ends."""
    with contextlib.suppress(ValueError):
        _runs.remove(config)


def around() -> Around:
    """What surrounds an `@spmd` test that begins now."""
    from aiodist.testing.plan import Reporting
    from aiodist.testing.run import Around

    if not _runs:
        return Around()
    config = _runs[-1]
    style = config.getoption("tbstyle", "auto")
    hook: Any = getattr(config.pluginmanager, "rewrite_hook", None)
    reporting = Reporting(
        "long" if style == "auto" else style,
        showlocals=bool(config.getoption("showlocals", False)),
        verbose=int(config.getoption("verbose", 0)),
        full=bool(config.getoption("fulltrace", False)),
        rewrite=config.getoption("assertmode", "rewrite") == "rewrite",
        marked=tuple(getattr(hook, "_must_rewrite", ())),
        pdb=bool(config.getoption("usepdb", False)),
        **_logging(config),
    )
    apart = "it runs in a worker of pytest-xdist: run it without -n" if hasattr(config, "workerinput") else ""
    return Around(reporting, lambda: _uncaptured(config), apart)


def _logging(config: pytest.Config) -> dict[str, Any]:
    """How pytest logs; nothing where it does not."""
    if not config.pluginmanager.hasplugin("logging-plugin"):
        return {}
    from _pytest.logging import get_log_level_for_setting, get_option_ini

    return {
        "log_level": get_log_level_for_setting(config, "log_level"),
        "log_format": get_option_ini(config, "log_format"),
        "log_dates": get_option_ini(config, "log_date_format"),
    }


@contextlib.contextmanager
def _uncaptured(config: pytest.Config) -> Iterator[None]:
    """A context in which this process has its terminal."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        yield
        return
    manager.suspend(in_=True)
    try:
        yield
    finally:
        sys.stdout.flush()
        manager.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a test that failed on ranks show the first rank's traceback, and then what the others say."""
    if call.excinfo is not None and not item.config.getoption("fulltrace", False):
        _end_at_the_program(call.excinfo.value)
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, RanksFailed):
        if report.longrepr is not None:
            report.longrepr = _shown(error, report)
        debugger = item.config.pluginmanager.unregister(name="pdbinvoke")
        if debugger is not None:  # the rank itself has had one
            item.stash[_debugger] = debugger
    elif isinstance(error, UsageError) and hasattr(getattr(item, "obj", None), "spmd_function"):
        report.longrepr = _shown(RanksFailed(f"{type(error).__name__}: {error}"), report)
    return report


def _end_at_the_program(error: BaseException) -> None:
    """Take the library's frames off the end of an error that it has raised for the program to see."""
    from aiodist.testing.report import visible

    entries: list[TracebackType] = []
    entry = error.__traceback__ if isinstance(error, AiodistError) else None
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept = visible([one.tb_frame.f_code.co_filename for one in entries])
    if True in kept:
        entries[len(kept) - 1 - kept[::-1].index(True)].tb_next = None


_debugger = pytest.StashKey[object]()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Give pytest its debugger back."""
    debugger = item.stash.get(_debugger, None)
    if debugger is not None:
        del item.stash[_debugger]
        item.config.pluginmanager.register(debugger, "pdbinvoke")


def _shown(error: RanksFailed, report: pytest.TestReport) -> Any:
    from _pytest._code.code import (
        ExceptionChainRepr,
        ReprEntryNative,
        ReprFileLocation,
        ReprTraceback,
    )

    shown = error.shown
    path, line, _ = report.location
    if shown is None:
        crash = ReprFileLocation(path, (line or 0) + 1, error.title)
        entry = ReprEntryNative([f"{error.title}\n", f"{error.cause}\n" if error.cause else ""])
        shown = ExceptionChainRepr([(ReprTraceback([entry], None, "native"), crash, None)])
        title = "the other ranks"
    else:
        if shown.reprcrash is not None:
            shown.reprcrash.message = error.title
        title = error.title
    if error.rest or error.shown is not None:
        shown.addsection(title, "\n".join(error.rest), "-")
    return shown
