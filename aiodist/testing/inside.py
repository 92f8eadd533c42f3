"""pytest's part in a rank: asserts that say their values, tracebacks as pytest shows them, and the fixtures
that every rank has of its own. No session runs here."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.testing.plan import Reporting
from aiodist.testing.report import visible


@functools.cache
def _config() -> pytest.Config:
    """A configuration without plugins and files. The fork server makes it before it forks."""
    from _pytest._io import TerminalWriter
    from _pytest.config import get_config

    loads = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        config = get_config()
        config.parse(["--assert=plain", "--noconftest", "-c", os.devnull, f"--rootdir={os.sep}"])
        # pytest 8 asks it how to highlight what a comparison says; here is no terminal.
        writer = TerminalWriter(io.StringIO())
        config.pluginmanager.register(SimpleNamespace(_tw=writer), "terminalreporter")
    finally:
        if loads is None:
            del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        else:
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = loads
    return config


class Inside:
    """The parts of pytest that are here.

    Args:
        reporting: how failures are shown.

    Attributes:
        rewriting: the loader that rewrites asserts; None: nothing does.
    """

    def __init__(self, reporting: Reporting) -> None:
        self._reporting = reporting
        self._config = config = _config()
        config.option.verbose = reporting.verbose
        self.rewriting: Any = None
        if reporting.rewrite:
            self.rewriting = _rewriting(config, reporting.marked)
        if reporting.log_format:
            _log(reporting)

    def shown(self, error: BaseException) -> Any:
        """An exception as pytest shows it, and as it can be pickled."""
        if error.__traceback__ is None:
            return None
        reporting = self._reporting
        info = pytest.ExceptionInfo.from_exc_info((type(error), error, error.__traceback__))
        return info.getrepr(
            showlocals=reporting.showlocals,
            style=reporting.style,  # type: ignore[arg-type]
            tbfilter=False if reporting.full else _cut,
            truncate_locals=reporting.verbose < 2,
            funcargs=False,
        )

    @contextlib.contextmanager
    def fixtures(self, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Those that are wanted: the fixture's name by the argument's."""
        with contextlib.ExitStack() as kept:
            yield {name: kept.enter_context(_OWN[kind]()) for name, kind in wanted.items()}


def _log(reporting: Reporting) -> None:
    """Print log records as pytest shows them, to the output that no fixture captures."""
    handler = logging.StreamHandler(os.fdopen(os.dup(2), "w", buffering=1))
    handler.setFormatter(logging.Formatter(reporting.log_format, reporting.log_dates))
    root = logging.getLogger()
    root.addHandler(handler)
    if reporting.log_level is not None:
        handler.setLevel(reporting.log_level)
        root.setLevel(min(root.level, reporting.log_level))


def _rewriting(config: pytest.Config, marked: tuple[str, ...]) -> Any:
    from _pytest.assertion import install_importhook, pytest_runtest_protocol

    config.option.assertmode = "rewrite"
    hook = install_importhook(config)
    hook.mark_rewrite(*marked)
    item: Any = SimpleNamespace(config=config, ihook=config.hook, nodeid="")
    running = pytest_runtest_protocol(item)  # from here on, comparisons are explained
    next(running)
    _kept.append(running)
    return hook


_kept: list[Any] = []


def _cut(info: Any) -> Any:
    """The traceback without the frames that say nothing to the author of a test."""
    entries = list(info.traceback)
    kept = visible([str(entry.path) for entry in entries])
    shown = {
        id(entry) for entry, keep in zip(entries, kept, strict=True) if keep and not entry.ishidden(info)
    }
    return info.traceback.filter(lambda entry: id(entry) in shown) or info.traceback


@contextlib.contextmanager
def _monkeypatch() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@contextlib.contextmanager
def _caplog() -> Iterator[Any]:
    from _pytest.logging import (
        LogCaptureHandler,
        caplog_handler_key,
        caplog_records_key,
        catching_logs,
    )

    handler = LogCaptureHandler()
    stash = pytest.Stash()
    stash[caplog_handler_key] = handler
    stash[caplog_records_key] = {"call": handler.records}
    node: Any = SimpleNamespace(stash=stash)
    with catching_logs(handler):
        fixture = pytest.LogCaptureFixture(node, _ispytest=True)
        try:
            yield fixture
        finally:
            fixture._finalize()


@contextlib.contextmanager
def _capture(kind: str) -> Iterator[Any]:
    from _pytest import capture

    fixture: Any = pytest.CaptureFixture(getattr(capture, kind), SimpleNamespace(), _ispytest=True)  # type: ignore[arg-type]
    sys.stdout.flush()
    fixture._start()
    try:
        yield fixture
    finally:
        fixture.close()


@contextlib.contextmanager
def _recwarn() -> Iterator[Any]:
    import warnings

    with pytest.WarningsRecorder(_ispytest=True) as recorder:
        warnings.simplefilter("default")
        yield recorder


_OWN: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "monkeypatch": _monkeypatch,
    "caplog": _caplog,
    "recwarn": _recwarn,
    "capsys": functools.partial(_capture, "SysCapture"),
    "capfd": functools.partial(_capture, "FDCapture"),
}
"""The fixtures that every rank has of its own, by name."""


def prepare() -> None:
    """Make now what takes long."""
    _config()
