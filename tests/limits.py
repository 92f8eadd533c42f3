"""What becomes of a test that reaches its limit: it fails, by name, and the run goes on.

pytest-timeout knows when; how is done here. Its thread ends the whole run, without a summary. Its signal
raises once what event loops swallow: nothing would end that test any more. So the failure is of a kind that
they let pass, and is raised again and again, in the main thread, while a phase of the test lasts. Native code
hears nothing of it; then the run does end, with a summary.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

import pytest
from pytest_timeout import is_debugging

AGAIN = 30.0  # seconds until it is raised again, where the test, with what it cleans up, goes on
RAISED = 4  # times; then the main thread is taken for lost
SIGNAL = signal.SIGXCPU  # no test needs it, unlike SIGALRM
NAME = "limits of tests"
_STACKS = "stacks of other threads"
Phase = Generator[None, object, object]


class Overdue(SystemExit):
    """A test has reached its limit. Event loops let nothing pass but this kind, and KeyboardInterrupt, which
    would end the run; uvloop runs every handler of a signal in a callback."""


class Watch(threading.Thread):
    """One thread for all tests, in turn: it tells the main thread when a limit is reached."""

    def __init__(self, again: float) -> None:
        super().__init__(name=NAME, daemon=True)
        self._again = again
        self._screen = os.dup(2)  # before pytest captures it
        self._changed = threading.Condition()
        self._item: pytest.Item | None = None
        self._limit = 0.0
        self._due = 0.0
        self._rung = 0
        self.inside = False  # whether a phase of the test is on

    def begin(self, item: pytest.Item, limit: float) -> None:
        """A test begins."""
        with self._changed:
            self._item, self._limit, self._rung = item, limit, 0
            self._due = time.monotonic() + limit
            self._changed.notify()
        # A thread of C, for who holds the interpreter.
        faulthandler.dump_traceback_later(limit + (RAISED + 2) * self._again, exit=True, file=self._screen)

    def end(self) -> None:
        """It has ended."""
        with self._changed:
            self._item, self._rung = None, 0
            self._changed.notify()
        faulthandler.cancel_dump_traceback_later()

    def run(self) -> None:
        while True:
            with self._changed:
                if self._item is None:
                    self._changed.wait()
                    continue
                left = self._due - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                item = self._item
                self._due += self._again
                self._rung += 1
                lost = self._rung > RAISED
            if is_debugging():
                continue
            if lost:
                end_the_run(item, self._limit, self._screen)
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def ring(self, _signum: int, _frame: FrameType | None) -> None:
        """In the main thread: fail the test, if it is still there."""
        item = self._item
        if item is None or not self._rung or not self.inside:
            return
        if not any(name == _STACKS for _, name, _ in item._report_sections):
            item.add_report_section("call", _STACKS, stacks())
        raise Overdue(f"no end within {self._limit:g} s")


def stacks() -> str:
    """What all threads but this one do."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    left_out = (threading.get_ident(), next(i for i, name in names.items() if name == NAME))
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident not in left_out
    )


def give_lines(error: BaseException) -> None:
    """Give every entry of the exception's tracebacks a line, as pytest's report needs.

    A handler of a signal may run at an instruction that belongs to no line (the compiler's own cleanup). The
    entry's `tb_lineno` is None there, and pytest would end the whole run by a TypeError.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        error_ = left.pop()
        if error_ is None or id(error_) in seen:
            continue
        seen.add(id(error_))
        error_.__traceback__ = _with_lines(error_.__traceback__)
        left += [error_.__cause__, error_.__context__]
        if isinstance(error_, BaseExceptionGroup):
            left += error_.exceptions


def _with_lines(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(entries):
        line: int | None = entry.tb_lineno  # the stubs know of no None
        if line is None:
            line = entry.tb_frame.f_code.co_firstlineno
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, line)
    return traceback


def end_the_run(item: pytest.Item, limit: float, screen: int) -> None:
    """The main thread does not react: say what is known, and end the process."""
    reporter: Any = item.config.pluginmanager.getplugin("terminalreporter")
    with suppress(Exception):
        capture: Any = item.config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture()
        reporter.summary_failures()
        reporter.summary_errors()
        reporter.short_test_summary()
        reporter.summary_stats()
    with suppress(Exception):
        reporter.write_sep("!", "the run ends here")
        reporter.write_line(f"{item.nodeid} has no end within {limit:g} s, and does not react:")
        reporter._tw._file.flush()
    faulthandler.dump_traceback(screen, all_threads=True)
    os._exit(1)


class Limits:
    """The hooks, of pytest and of pytest-timeout."""

    def __init__(self, config: pytest.Config) -> None:
        self._watch = Watch(float(config.getini("limit_again")))
        self._debugs = bool(config.getoption("usepdb"))
        signal.signal(SIGNAL, self._watch.ring)
        self._watch.start()

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """In place of pytest-timeout's ways."""
        self._watch.begin(item, settings.timeout)
        return True

    def pytest_timeout_cancel_timer(self) -> bool:
        """Called after every failure, too, when fixtures have yet to be taken back: that may hang as well."""
        if self._debugs:
            self._watch.end()
        return True

    def pytest_runtest_logfinish(self) -> None:
        """The test is over, with all phases."""
        self._watch.end()

    def _phase(self) -> Phase:
        """pytest catches what is raised in a phase, and nowhere else."""
        self._watch.inside = True
        try:
            return (yield)
        except BaseException as error:
            give_lines(error)
            raise
        finally:
            self._watch.inside = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Phase:
        """Fixtures are made."""
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Phase:
        """The test itself."""
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Phase:
        """Fixtures are taken back."""
        return (yield from self._phase())


def pytest_addoption(parser: pytest.Parser) -> None:
    """For this file's own tests."""
    parser.addini(
        "limit_again", "seconds until a test that does not end is told so again", default=f"{AGAIN}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch. Forked children have no watch, and need none."""
    config.pluginmanager.register(Limits(config))
